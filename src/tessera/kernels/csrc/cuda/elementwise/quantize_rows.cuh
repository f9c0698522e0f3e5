// Floats to int8 rows.
#pragma once
#include "elementwise/int8_rows.cuh"

namespace tessera {

// Of eight packed elements, in two lanes.
template <class T>
TESSERA_DEVICE u32 max_magnitudes(uint4 x) {
  constexpr u32 kNoSigns = 0x7fff7fffu;
  return max2_nan<T>(max2_nan<T>(x.x & kNoSigns, x.y & kNoSigns), max2_nan<T>(x.z & kNoSigns, x.w & kNoSigns));
}

// x [rows, width] -> codes in tiles, scale and row_sum [rows]; grid = rows.
template <class T, int kThreads, int kVecs>
__global__ void __launch_bounds__(kThreads)
    quantize_rows(const T* x, i8* codes, float* scale, i32* row_sum, int width) {
  const int vecs = width / kLane;
  const T* from = x + static_cast<i64>(blockIdx.x) * width + threadIdx.x * kLane;
  await_between_products();
  uint4 v[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k)
    v[k] = threadIdx.x + k * kThreads < vecs ? load_stream(from + k * kThreads * kLane) : uint4{};
  u32 largest = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) largest = max2_nan<T>(largest, max_magnitudes<T>(v[k]));
  const float2 pair = unpack2<T>(largest);
  quantize_row<kThreads, kVecs>(block_max<kThreads>(max_magnitude(pair.x, pair.y)),
                                [&](int k) { return unpack8<T>(v[k]); }, 1.0f, width, {codes, scale, row_sum});
}

}  // namespace tessera
