// y = x W^T + b of 16-bit weights for up to 16 rows of x: as fast as the weights can be read.
//
// Weight rows lie on the M axis of mma and rows of x on N. The order of a contraction is free, so a lane's fragment
// is any 16 bytes of its weight row, as long as x is read with the same permutation: weights go from global memory
// to the tensor cores without shared memory or shuffles. The warps of a block split K and add up in shared memory.
#pragma once
#include "common/mma.cuh"
#include "common/types.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

template <class T_, int kTokenTiles_, int kWarps_>
struct Skinny {
  using T = T_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = 16;  // weight rows a block
  static constexpr int kStep = 32;  // elements of K that a warp takes at once: 4 lanes of 16 bytes
  static constexpr int kAhead = 8;  // steps whose weights are loaded before the first is used
};

template <class S>
struct Weights {
  uint4 upper[S::kAhead], lower[S::kAhead];  // rows g and g + 8

  // Steps first .. first + kAhead - 1 of this warp, which takes every kWarps-th; zeros past the end of K.
  TESSERA_DEVICE void load(const typename S::T* row0, const typename S::T* row8, int first, int steps) {
#pragma unroll
    for (int j = 0; j < S::kAhead; ++j) {
      const int at = (first + j * S::kWarps) * S::kStep;
      const bool real = first + j * S::kWarps < steps;
      upper[j] = real ? load_stream(row0 + at) : uint4{};
      lower[j] = real ? load_stream(row8 + at) : uint4{};
    }
  }
};

// x [tokens, k], weight [n, k], bias [n] or null -> y [tokens, n]; k a multiple of 32, tokens at most kTokens.
// Grid: n / 16, rounded up.
template <class S>
__global__ void __launch_bounds__(S::kThreads)
    skinny_linear(const typename S::T* x, const typename S::T* weight, const typename S::T* bias,
                  typename S::T* y, int tokens, int n, int k) {
  using T = typename S::T;
  __shared__ float sums[S::kWarps][S::kTokens][S::kRows + 1];
  const int g = lane_id() / 4, t = lane_id() % 4, warp = threadIdx.x / kWarp;
  const int row = blockIdx.x * S::kRows, steps = k / S::kStep;
  const T* row0 = weight + static_cast<i64>(min(row + g, n - 1)) * k + t * 8;
  const T* row8 = weight + static_cast<i64>(min(row + g + 8, n - 1)) * k + t * 8;
  Weights<S> w;
  w.load(row0, row8, warp, steps);  // weights never change, so they need not wait for the kernel before
  await_predecessor();

  float d[S::kTokenTiles][4] = {};
  for (int first = warp; first < steps; first += S::kAhead * S::kWarps) {
    if (first != warp) w.load(row0, row8, first, steps);
#pragma unroll
    for (int j = 0; j < S::kAhead; ++j) {
      const int step = min(first + j * S::kWarps, steps - 1);  // past the end weights are zero
      const uint4 a = w.upper[j], b = w.lower[j];
#pragma unroll
      for (int m = 0; m < S::kTokenTiles; ++m) {
        const int token = min(8 * m + g, tokens - 1);
        const uint4 v = *reinterpret_cast<const uint4*>(x + static_cast<i64>(token) * k + step * S::kStep + t * 8);
        mma_16816<T>(d[m], {a.x, b.x, a.y, b.y}, {v.x, v.y});
        mma_16816<T>(d[m], {a.z, b.z, a.w, b.w}, {v.z, v.w});
      }
    }
  }
#pragma unroll
  for (int m = 0; m < S::kTokenTiles; ++m)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[warp][8 * m + 2 * t + e % 2][g + (e / 2) * 8] = d[m][e];
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * S::kRows; i += S::kThreads) {
    const int token = i / S::kRows, r = i % S::kRows;
    if (row + r >= n) continue;
    float sum = bias ? to_float(bias[row + r]) : 0.0f;
#pragma unroll
    for (int other = 0; other < S::kWarps; ++other) sum += sums[other][token][r];
    y[static_cast<i64>(token) * n + row + r] = from_float<T>(sum);
  }
}

}  // namespace tessera
