// (Residual +) RMSNorm (Zhang and Sennrich 2019, equation 4), optionally to int8 rows, in one pass over memory.
#pragma once
#include "elementwise/rows.cuh"

namespace tessera {

// x [rows, width] (+ residual -> sum), weight [width]; grid = rows. The sum is rounded to T before it is normalised,
// so fusing the addition changes no bit. Output: T [rows, width], or codes in tiles with `scale` and `row_sum` [rows].
template <class T, int kThreads, int kVecs, bool kResidual, bool kQuantize>
__global__ void __launch_bounds__(kThreads) rms_norm(const T* x, const T* residual, const T* weight, T* sum, void* out,
                                                     float* scale, i32* row_sum, int width, float eps) {
  __shared__ float scratch[kThreads / kWarp];
  const int vecs = width / kLane;
  const i64 row = blockIdx.x;
  uint4 w[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int vec = threadIdx.x + k * kThreads;
    w[k] = vec < vecs ? load_nc(weight + vec * kLane) : uint4{};
  }
  await_predecessor();

  uint4 a[kVecs], b[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int vec = threadIdx.x + k * kThreads;
    const i64 at = row * width + vec * kLane;
    a[k] = vec < vecs ? load_stream(x + at) : uint4{};
    if constexpr (kResidual) b[k] = vec < vecs ? load_stream(residual + at) : uint4{};
  }
  Floats8 v[kVecs];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int vec = threadIdx.x + k * kThreads;
    v[k] = unpack8<T>(a[k]);
    if constexpr (kResidual) {
      const Floats8 r = unpack8<T>(b[k]);
#pragma unroll
      for (int i = 0; i < kLane; ++i) v[k][i] += r[i];
      const uint4 rounded = pack8<T>(v[k]);
      if (vec < vecs) *reinterpret_cast<uint4*>(sum + row * width + vec * kLane) = rounded;
      v[k] = unpack8<T>(rounded);
    }
#pragma unroll
    for (int i = 0; i < kLane; ++i) squares += v[k][i] * v[k][i];
  }
  squares = block_reduce<kThreads>(squares, Sum{}, scratch);
  const float factor = rsqrtf(squares / width + eps);
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const Floats8 g = unpack8<T>(w[k]);
#pragma unroll
    for (int i = 0; i < kLane; ++i) v[k][i] *= factor * g[i];
  }
  if constexpr (kQuantize) {
    quantize_row<kThreads, kVecs>(v, width, static_cast<i8*>(out), scale, row_sum);
  } else {
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int vec = threadIdx.x + k * kThreads;
      if (vec < vecs) reinterpret_cast<uint4*>(static_cast<T*>(out) + row * width)[vec] = pack8<T>(v[k]);
    }
  }
}

}  // namespace tessera
