// One-warp kernels that run mma.sync and the matrix moves on operands given row by row: `tests/kernels/cuda`
// compares what they return with torch, and `tessera doctor` can run them as a self-check.
#pragma once
#include "common/matrix.cuh"
#include "common/mma.cuh"

namespace tessera::check {

constexpr int kRowBytes = 32;  // K of one mma step: 16 elements of 16 bits or 32 of 8 bits

// a [16, 32 bytes], b [8, 32 bytes], d [16, 8] of float (T f16, bf16) or i32 (T u8, i8). One warp.
// kLdmatrix: fragments through shared memory and ldmatrix; otherwise straight from the layout in mma.cuh.
template <class T, bool kLdmatrix>
__global__ void mma(const u32* a, const u32* b, u32* d) {
  constexpr int kWords = kRowBytes / 4;
  __shared__ __align__(16) u32 rows[24 * kWords];
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  u32 fa[4], fb[2];
  if constexpr (kLdmatrix) {
    for (int i = lane; i < 16 * kWords; i += kWarp) rows[i] = a[i];
    for (int i = lane; i < 8 * kWords; i += kWarp) rows[16 * kWords + i] = b[i];
    __syncwarp();
    ldmatrix(fa, smem_address(rows) + (lane % 16) * kRowBytes + lane / 16 * 16);
    ldmatrix(fb, smem_address(rows) + (16 + lane % 8) * kRowBytes + lane / 8 % 2 * 16);
  } else {
    for (int i = 0; i < 4; ++i) fa[i] = a[(g + i % 2 * 8) * kWords + t + i / 2 * 4];
    for (int i = 0; i < 2; ++i) fb[i] = b[g * kWords + t + i * 4];
  }
  if constexpr (sizeof(T) == 2) {
    float acc[4] = {};
    mma_16816<T>(acc, fa, fb);
    for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = __float_as_uint(acc[i]);
  } else {
    i32 acc[4] = {};
    mma_16832<T>(acc, fa, fb);
    for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = acc[i];
  }
}

// x [8 * kMatrices, 8] of 16-bit elements, loaded and stored again; kTransLoad, kTransStore transpose each matrix.
// Storing is by stmatrix (sm_90) or, where kStmatrix is false, by the fragment layout.
template <int kMatrices, bool kTransLoad, bool kTransStore, bool kStmatrix>
__global__ void matrix_move(const u32* x, u32* y) {
  __shared__ __align__(16) u32 in[kMatrices * 32], out[kMatrices * 32];
  const int lane = lane_id();
  for (int i = lane; i < kMatrices * 32; i += kWarp) in[i] = x[i];
  __syncwarp();
  u32 f[kMatrices];
  const int row = lane % (8 * kMatrices) * 16;
  if constexpr (kTransLoad) ldmatrix_trans(f, smem_address(in) + row);
  else ldmatrix(f, smem_address(in) + row);
  if constexpr (kStmatrix) {
    if constexpr (kTransStore) stmatrix_trans(smem_address(out) + row, f);
    else stmatrix(smem_address(out) + row, f);
  } else {
    for (int i = 0; i < kMatrices; ++i) {
      if constexpr (kTransStore) f[i] = movmatrix_trans(f[i]);
      out[i * 32 + lane] = f[i];  // word lane of a matrix: row lane / 4, columns 2 (lane % 4) and the next
    }
  }
  __syncwarp();
  for (int i = lane; i < kMatrices * 32; i += kWarp) y[i] = out[i];
}

// d[16, 8] = codes[16, 16] b[8, 16]^T with the codes 0..15 standing in the A operand as fp16 subnormals code * 2^-24.
// One warp a tile; blockIdx.x picks the tile of codes, b and d.
__global__ void subnormal_mma(const u8* codes, const u32* b, float* d) {
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  codes += blockIdx.x * 256, b += blockIdx.x * 64, d += blockIdx.x * 128;
  u32 fa[4], fb[2];
  for (int i = 0; i < 4; ++i) {
    const u8* pair = codes + (g + i % 2 * 8) * 16 + 2 * (t + i / 2 * 4);
    fa[i] = pair[0] | pair[1] << 16;
  }
  for (int i = 0; i < 2; ++i) fb[i] = b[g * 8 + t + i * 4];
  float acc[4] = {};
  mma_16816<f16>(acc, fa, fb);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = acc[i];
}

}  // namespace tessera::check
