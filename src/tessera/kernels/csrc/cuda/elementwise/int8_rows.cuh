// Floats to int8 rows in tiles.
#pragma once
#include "common/bits.cuh"
#include "common/tiled.cuh"
#include "elementwise/rows.cuh"

namespace tessera {

// codes in tiles (tiled.cuh), scale and row_sum [rows]: symmetric, scale = max|x| / 127, codes = round_half_even(x *
// (1 / scale)), row_sum the sum of codes. Bit for bit what numerics.activation.quantize_rows computes, empty rows
// (scale 1, codes 0) and rows with NaN or Inf (a scale that is not finite, codes 0) included.
struct Int8Rows {
  i8* codes;
  float* scale;
  i32* row_sum;
};

// max(|a|, |b|), or NaN where one of them is. max.NaN.f32, sm_80
TESSERA_DEVICE float max_magnitude(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(fabsf(a)), "f"(fabsf(b)));
  return y;
}
TESSERA_DEVICE float max_magnitude(const Floats8& x) {
  const float a = max_magnitude(max_magnitude(x[0], x[1]), max_magnitude(x[2], x[3]));
  return max_magnitude(a, max_magnitude(max_magnitude(x[4], x[5]), max_magnitude(x[6], x[7])));
}

// Over a warp, to every lane, by redux.sync (sm_80). Floats that are not negative, NaN among them, are ordered as
// integers are.
TESSERA_DEVICE float warp_max(float x) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(x)));
}
TESSERA_DEVICE i32 warp_sum(i32 x) { return __reduce_add_sync(0xffffffffu, x); }

template <int kThreads>
TESSERA_DEVICE float block_max(float x) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float scratch[kWarps];
  x = warp_max(x);
  if constexpr (kWarps == 1) return x;
  if (lane_id() == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_max(lane_id() < kWarps ? scratch[lane_id()] : 0.0f);
}

// Eight codes of x as bytes. Adding 1.5 * 2^23 rounds to the nearest even integer, which the low byte then is.
// __fmul_rn and __fadd_rn are never contracted.
TESSERA_DEVICE uint2 to_codes(const Floats8& x, float inverse, u32 mask) {
  i32 c[kLane];
#pragma unroll
  for (int i = 0; i < kLane; ++i) c[i] = __float_as_int(__fadd_rn(__fmul_rn(x[i], inverse), 12582912.0f));
  return make_uint2(pack_bytes(c[0], c[1], c[2], c[3]) & mask, pack_bytes(c[4], c[5], c[6], c[7]) & mask);
}

// Row blockIdx.x of a grid with one block a row: what is quantized is `factor` times values(k), the k-th vector of this
// thread, 0 from column `width` on. `largest` is the block's largest magnitude of values. Columns up to a whole step
// are written.
template <int kThreads, int kVecs, class Values>
TESSERA_DEVICE void quantize_row(float largest, const Values& values, float factor, int width, const Int8Rows& rows) {
  constexpr float kSmallestNormal = 1.17549435e-38f;
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads * kLane % kStep == 0, "a thread's vectors lie at one place of their tiles");
  __shared__ i32 scratch[kWarps];
  const int row = blockIdx.x, atoms = div_up(gridDim.x, kAtom), vecs = round_up(width, kStep) / kLane;
  i8* to = rows.codes + tiled_offset(row, threadIdx.x * kLane, atoms);
  const i64 stride = static_cast<i64>(kThreads * kLane / kStep) * atoms * (kAtom * kStep);
  const float fitted = __fdiv_rn(largest, 127.0f);
  const bool empty = fitted < kSmallestNormal;
  const float inverse = empty ? 0.0f : __frcp_rn(fitted);
  const u32 mask = __float_as_uint(fitted) < 0x7f800000u ? 0xffffffffu : 0u;
  i32 sum = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (threadIdx.x + k * kThreads >= vecs) break;
    const uint2 codes = to_codes(values(k), inverse, mask);
    sum = dp4a(codes.x, 0x01010101u, dp4a(codes.y, 0x01010101u, sum));
    *reinterpret_cast<uint2*>(to + k * stride) = codes;
  }
  sum = warp_sum(sum);
  if constexpr (kWarps > 1) {
    if (lane_id() == 0) scratch[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x < kWarp) sum = warp_sum(lane_id() < kWarps ? scratch[lane_id()] : 0);
  }
  if (threadIdx.x == 0) {
    rows.scale[row] = empty ? 1.0f : factor * fitted;
    rows.row_sum[row] = sum;
  }
}

}  // namespace tessera
