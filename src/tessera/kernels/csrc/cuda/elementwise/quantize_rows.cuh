// Floats to int8 rows.
#pragma once
#include "elementwise/rows.cuh"

namespace tessera {

// x [rows, width] -> codes in tiles, scale and row_sum [rows]; grid = rows.
template <class T, int kThreads, int kVecs>
__global__ void __launch_bounds__(kThreads)
    quantize_rows(const T* x, i8* codes, float* scale, i32* row_sum, int width) {
  await_predecessor();
  const int vecs = width / kLane;
  const i64 row = blockIdx.x;
  Floats8 v[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int vec = threadIdx.x + k * kThreads;
    v[k] = unpack8<T>(vec < vecs ? load_stream(x + row * width + vec * kLane) : uint4{});
  }
  quantize_row<kThreads, kVecs>(v, width, codes, scale, row_sum);
}

}  // namespace tessera
