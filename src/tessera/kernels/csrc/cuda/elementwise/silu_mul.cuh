// silu(gate) * up of rows [gate | up], optionally to int8 rows.
#pragma once
#include "elementwise/int8_rows.cuh"

namespace tessera {

// x / (1 + e^-x) with about 2 ulp. Where ex2.approx.ftz or rcp.approx.ftz flushes, the result is below 1e-36.
TESSERA_DEVICE float silu(float x) { return x * reciprocal_approx(1.0f + exp2_approx(-1.44269504f * x)); }

// gate_up [rows, 2 width]; grid = (rows, chunks of kThreads * kVecs vectors; one chunk where rows are quantized).
template <class T, int kThreads, int kVecs, bool kQuantize>
__global__ void __launch_bounds__(kThreads)
    silu_mul(const T* gate_up, void* out, float* scale, i32* row_sum, int width) {
  const int first = blockIdx.y * kThreads * kVecs + threadIdx.x, vecs = width / kLane;
  const i64 row = blockIdx.x;
  const T* gate = gate_up + row * 2 * width + first * kLane;
  await_between_products();
  uint4 g[kVecs], u[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const bool there = first + k * kThreads < vecs;
    g[k] = there ? load_stream(gate + k * kThreads * kLane) : uint4{};
    u[k] = there ? load_stream(gate + width + k * kThreads * kLane) : uint4{};
  }
  Floats8 v[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    v[k] = unpack8<T>(g[k]);
    const Floats8 up = unpack8<T>(u[k]);
#pragma unroll
    for (int i = 0; i < kLane; ++i) v[k][i] = silu(v[k][i]) * up[i];
  }
  if constexpr (kQuantize) {
    float largest = max_magnitude(v[0]);
#pragma unroll
    for (int k = 1; k < kVecs; ++k) largest = max_magnitude(largest, max_magnitude(v[k]));
    quantize_row<kThreads, kVecs>(block_max<kThreads>(largest), [&](int k) { return v[k]; }, 1.0f, width,
                                  {static_cast<i8*>(out), scale, row_sum});
  } else {
    uint4* to = reinterpret_cast<uint4*>(static_cast<T*>(out) + row * width) + first;
#pragma unroll
    for (int k = 0; k < kVecs; ++k)
      if (first + k * kThreads < vecs) to[k * kThreads] = pack8<T>(v[k]);
  }
}

}  // namespace tessera
