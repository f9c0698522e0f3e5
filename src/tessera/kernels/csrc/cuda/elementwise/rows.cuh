// Rows held in registers: a block owns one row, thread i its vectors i, i + kThreads, ... of eight elements.
#pragma once
#include "common/bits.cuh"
#include "common/reduce.cuh"
#include "common/tiled.cuh"
#include "common/types.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

constexpr int kLane = 8;  // elements a vector: 16 bytes of a 16-bit type

struct Floats8 {
  float v[kLane];
  TESSERA_DEVICE float& operator[](int i) { return v[i]; }
  TESSERA_DEVICE float operator[](int i) const { return v[i]; }
};

template <class T>
TESSERA_DEVICE Floats8 unpack8(uint4 x) {
  const float2 a = unpack2<T>(x.x), b = unpack2<T>(x.y), c = unpack2<T>(x.z), d = unpack2<T>(x.w);
  return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}

template <class T>
TESSERA_DEVICE uint4 pack8(const Floats8& x) {
  return make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7]));
}

// int8 rows, symmetric: scale = max|x| / 127, codes = round_half_even(x * (1 / scale)); row_sum is the sum of codes.
// Bit for bit what numerics.activation.quantize_rows computes, empty rows (scale 1, codes 0) and rows with NaN or
// Inf (a scale that is not finite) included: as integers |NaN| > |Inf| > any number, so the maximum keeps them.
// `x` is the block's row of a grid with one block a row, 0 or NaN (code 0) from column `width` on; `codes` are tiles
// (tiled.cuh), whose columns up to a whole step are written.
template <int kThreads, int kVecs>
TESSERA_DEVICE void quantize_row(const Floats8 (&x)[kVecs], int width, i8* codes, float* scale, i32* row_sum) {
  constexpr float kSmallestNormal = 1.17549435e-38f;
  __shared__ u32 scratch[kThreads / kWarp];
  __shared__ i32 sums[kThreads / kWarp];
  u32 bits = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k)
#pragma unroll
    for (int i = 0; i < kLane; ++i) bits = max(bits, __float_as_uint(x[k][i]) & 0x7fffffffu);
  bits = block_reduce<kThreads>(bits, AbsMax{}, scratch);
  const float fitted = __fdiv_rn(__uint_as_float(bits), 127.0f);
  const bool empty = fitted < kSmallestNormal;
  const float inverse = empty ? 0.0f : __frcp_rn(fitted);
  const int row = blockIdx.x, atoms = div_up(gridDim.x, kAtom), padded = round_up(width, kStep) / kLane;
  static_assert(kThreads * kLane % kStep == 0, "a thread's vectors lie at one place of their tiles");
  codes += tiled_offset(row, threadIdx.x * kLane, atoms);
  const i64 stride = static_cast<i64>(kThreads * kLane / kStep) * atoms * (kAtom * kStep);
  i32 sum = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int vec = threadIdx.x + k * kThreads;
    if (vec >= padded) break;
    i32 c[kLane];
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      c[i] = to_s8(x[k][i] * inverse);
      sum += c[i];
    }
    const uint2 packed = make_uint2(pack_bytes(c[0], c[1], c[2], c[3]), pack_bytes(c[4], c[5], c[6], c[7]));
    *reinterpret_cast<uint2*>(codes + k * stride) = packed;
  }
  sum = block_reduce<kThreads>(sum, Sum{}, sums);
  if (threadIdx.x == 0) {
    scale[row] = empty ? 1.0f : fitted;
    row_sum[row] = sum;
  }
}

}  // namespace tessera
