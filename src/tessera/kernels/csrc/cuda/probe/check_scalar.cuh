// Elementwise use of every wrapper in types.cuh, bits.cuh, async_copy.cuh and reduce.cuh; `tests/kernels/cuda`
// compares it with torch.
#pragma once
#include "common/async_copy.cuh"
#include "common/bits.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace tessera::check {

TESSERA_DEVICE int index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// wide[i] = float(narrow[i]); narrow_out[i] = T(values[i])
template <class T>
__global__ void convert(const T* narrow, float* wide, const float* values, T* narrow_out, int n) {
  if (const int i = index(); i < n) {
    wide[i] = to_float(narrow[i]);
    narrow_out[i] = from_float<T>(values[i]);
  }
}

// Two lanes a word: y[k][i] for k = add, sub, mul, max, min, fma (a b + c), pack2(unpack2(a)). y [7, n]
template <class T>
__global__ void pairs(const u32* a, const u32* b, const u32* c, u32* y, int n) {
  if (const int i = index(); i < n) {
    const float2 both = unpack2<T>(a[i]);
    const u32 results[7] = {add2<T>(a[i], b[i]), sub2<T>(a[i], b[i]), mul2<T>(a[i], b[i]), max2<T>(a[i], b[i]),
                            min2<T>(a[i], b[i]), fma2<T>(a[i], b[i], c[i]), pack2<T>(both.x, both.y)};
    for (int k = 0; k < 7; ++k) y[k * n + i] = results[k];
  }
}

// y[0] = to_s8(x), y[1] = exp2_approx(x) as its word. y [2, n]
__global__ void scalar_floats(const float* x, u32* y, int n) {
  if (const int i = index(); i < n) {
    y[i] = to_s8(x[i]);
    y[n + i] = __float_as_uint(exp2_approx(x[i]));
  }
}

// y[k][i] for k = lop3 and-or, lop3 and-xor, prmt(a, b, c), byte 2 of a everywhere, funnel, dp4a, pack_bytes. y [7, n]
__global__ void integers(const u32* a, const u32* b, const u32* c, u32* y, int n) {
  if (const int i = index(); i < n) {
    const u32 u = a[i], v = b[i], w = c[i];
    const i32 low = static_cast<i8>(u), high = static_cast<i8>(v);
    const u32 results[7] = {lop3<kAndOr>(u, v, w), lop3<kAndXor>(u, v, w), prmt(u, v, w & 0xffff),
                            broadcast_byte<2>(u), funnel_right(u, v, w), static_cast<u32>(dp4a(u, v, w)),
                            pack_bytes(low, high, -low / 2, high / 2)};
    for (int k = 0; k < 7; ++k) y[k * n + i] = results[k];
  }
}

// y[0][i] = x[i] by load_nc, y[1][i] by load_stream, y[2][i] by shared memory, each stored by store_stream. y [3, n]
__global__ void vectors(const uint4* x, uint4* y, int n) {
  __shared__ uint4 slot[256];
  if (const int i = index(); i < n) {
    store_stream(y + i, load_nc(x + i));
    store_stream(y + n + i, load_stream(x + i));
    store_shared(smem_address(slot + threadIdx.x), x[i]);
    store_stream(y + 2 * n + i, load_shared(smem_address(slot + threadIdx.x)));
  }
}

// 32 copies of kBytes, one a lane; lane l reads min(l, kBytes) bytes and the rest of its destination is zeroed.
template <int kBytes>
__global__ void cp_async_tail(const u8* x, u8* y) {
  __shared__ __align__(16) u8 in[32 * kBytes];
  const int lane = lane_id();
  const u32 valid = lane < kBytes ? lane : kBytes;
  for (int i = 0; i < kBytes; ++i) in[lane * kBytes + i] = 0xAA;
  __syncwarp();
  if constexpr (kBytes == 16) cp_async(smem_address(in) + lane * 16, x + lane * 16, valid);
  else cp_async_small<kBytes>(smem_address(in) + lane * kBytes, x + lane * kBytes, valid);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  for (int i = 0; i < kBytes; ++i) y[lane * kBytes + i] = in[lane * kBytes + i];
}

// Block b reduces row b of x [rows, kThreads] four ways into y [4, rows]: sum, max, min, absolute maximum.
template <class T, int kThreads>
__global__ void reduce(const T* x, T* y) {
  __shared__ T scratch[kThreads / kWarp];
  const T v = x[blockIdx.x * kThreads + threadIdx.x];
  const T results[4] = {block_reduce<kThreads>(v, Sum(), scratch), block_reduce<kThreads>(v, Max(), scratch),
                        block_reduce<kThreads>(v, Min(), scratch),
                        block_reduce<kThreads>(v < T(0) ? -v : v, AbsMax(), scratch)};
  // Every thread has the results: the last one writes, so that a reduction that only reaches thread 0 fails.
  if (threadIdx.x == kThreads - 1) {
    for (int k = 0; k < 4; ++k) y[k * gridDim.x + blockIdx.x] = results[k];
  }
}

// y [quads, 4, 4] = x, transposed in each quad of lanes; a warp a block.
__global__ void transposed_quads(const u32* x, u32* y) {
  u32 v[4];
  const int at = 4 * (blockIdx.x * kWarp + lane_id());
  for (int i = 0; i < 4; ++i) v[i] = x[at + i];
  quad_transpose(v);
  for (int i = 0; i < 4; ++i) y[at + i] = v[i];
}

// y[0..3] = the arguments as the device sees them; floats as their word.
__global__ void arguments(i64* y, i32 i, i64 q, u32 u, float f) {
  y[0] = i, y[1] = q, y[2] = u, y[3] = __float_as_uint(f);
}

// Every block adds its number + 1 with release; the last one to read all of them sees the total in y.
__global__ void release_acquire(u32* counter, u32* total, u32 expected) {
  add_release(counter, blockIdx.x + 1);
  while (load_acquire(counter) < expected) {
  }
  total[blockIdx.x] = load_acquire(counter);
}

}  // namespace tessera::check
