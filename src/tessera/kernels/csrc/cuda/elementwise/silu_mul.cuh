// silu(gate) * up of rows [gate | up], optionally to int8 rows.
#pragma once
#include "elementwise/rows.cuh"

namespace tessera {

TESSERA_DEVICE float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// gate_up [rows, 2 width]; grid = (rows, chunks of kThreads * kVecs vectors; one chunk where rows are quantized).
template <class T, int kThreads, int kVecs, bool kQuantize>
__global__ void __launch_bounds__(kThreads)
    silu_mul(const T* gate_up, void* out, float* scale, i32* row_sum, int width) {
  await_predecessor();
  const i64 row = blockIdx.x;
  const int first = blockIdx.y * kThreads * kVecs;
  const int vecs = width / kLane - first;
  const T* gate = gate_up + row * 2 * width + first * kLane;
  uint4 g[kVecs], u[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int vec = threadIdx.x + k * kThreads;
    g[k] = vec < vecs ? load_stream(gate + vec * kLane) : uint4{};
    u[k] = vec < vecs ? load_stream(gate + width + vec * kLane) : uint4{};
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
    quantize_row<kThreads, kVecs>(v, width, static_cast<i8*>(out), scale, row_sum);
  } else {
    uint4* to = reinterpret_cast<uint4*>(static_cast<T*>(out) + row * width + first * kLane);
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int vec = threadIdx.x + k * kThreads;
      if (vec < vecs) to[vec] = pack8<T>(v[k]);
    }
  }
}

}  // namespace tessera
