// (Residual +) RMSNorm (Zhang and Sennrich 2019, equation 4), optionally to int8 rows, in one pass over memory.
#pragma once
#include "common/reduce.cuh"
#include "elementwise/int8_rows.cuh"

namespace tessera {

// Sum of squares and, where rows are quantized, largest magnitude over the block, in one exchange between its warps.
struct NormSums {
  float squares;
  float largest;
};
template <int kThreads, bool kLargest>
TESSERA_DEVICE NormSums block_reduce(NormSums x) {
  constexpr int kWarps = kThreads / kWarp, kLanes = kWarps > 16 ? 32 : kWarps > 8 ? 16 : kWarps > 4 ? 8 : 4;
  __shared__ NormSums scratch[kWarps];
  x.squares = warp_reduce(x.squares, Sum{});
  if constexpr (kLargest) x.largest = warp_max(x.largest);
  if constexpr (kWarps == 1) return x;
  if (lane_id() == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = lane_id() % kLanes < kWarps ? scratch[lane_id() % kLanes] : NormSums{};
  x.squares = warp_reduce<kLanes>(x.squares, Sum{});
  if constexpr (kLargest) x.largest = warp_max(x.largest);
  return x;
}

// x [rows, width] (+ residual -> sum), weight [width]; grid = rows. The sum is rounded to T before it is normalised,
// so fusing the addition changes no bit. Output: T [rows, width], or codes in tiles with `scale` and `row_sum` [rows].
// Codes are those of x * weight: the norm's factor, which changes only their scale, need not be known to find them.
template <class T, int kThreads, int kVecs, bool kResidual, bool kQuantize>
__global__ void __launch_bounds__(kThreads) rms_norm(const T* x, const T* residual, const T* weight, T* sum, void* out,
                                                     float* scale, i32* row_sum, int width, float eps) {
  const int vecs = width / kLane;
  const i64 start = static_cast<i64>(blockIdx.x) * width + threadIdx.x * kLane;
  const auto at = [](int k) { return k * kThreads * kLane; };
  uint4 w[kVecs], a[kVecs], b[kVecs];
  bool there[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    there[k] = threadIdx.x + k * kThreads < vecs;
    w[k] = there[k] ? load_nc(weight + threadIdx.x * kLane + at(k)) : uint4{};
  }
  await_between_products();

#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    a[k] = there[k] ? load_stream(x + start + at(k)) : uint4{};
    if constexpr (kResidual) b[k] = there[k] ? load_stream(residual + start + at(k)) : uint4{};
  }
  Floats8 v[kVecs];
  NormSums row{};
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    v[k] = unpack8<T>(a[k]);
    if constexpr (kResidual) {
      const Floats8 r = unpack8<T>(b[k]);
#pragma unroll
      for (int i = 0; i < kLane; ++i) v[k][i] += r[i];
      const uint4 rounded = pack8<T>(v[k]);
      if (there[k]) *reinterpret_cast<uint4*>(sum + start + at(k)) = rounded;
      v[k] = unpack8<T>(rounded);
    }
    const Floats8 g = unpack8<T>(w[k]);
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      row.squares += v[k][i] * v[k][i];
      v[k][i] *= g[i];
    }
    if constexpr (kQuantize) row.largest = max_magnitude(row.largest, max_magnitude(v[k]));
  }
  row = block_reduce<kThreads, kQuantize>(row);
  const float factor = rsqrtf(row.squares / width + eps);
  if constexpr (kQuantize) {
    quantize_row<kThreads, kVecs>(row.largest, [&](int k) { return v[k]; }, factor, width,
                                  {static_cast<i8*>(out), scale, row_sum});
  } else {
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
#pragma unroll
      for (int i = 0; i < kLane; ++i) v[k][i] *= factor;
      if (there[k]) *reinterpret_cast<uint4*>(static_cast<T*>(out) + start + at(k)) = pack8<T>(v[k]);
    }
  }
}

}  // namespace tessera
