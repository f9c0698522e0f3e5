// y = x W^T for few tokens on mma.sync, built for bandwidth: weights are operand A and tokens lie on N.
//
// The steps of K of all output tiles form one line, contiguous in memory where tokens fit one tile, and every block
// takes an equal piece of it. One warp keeps the ring full of weights, another of tokens; sets of warps take the steps
// in turn (slices) and put their sums together in shared memory; a tile that a cut divides is put together through
// global memory. Sums are int32, so that neither slices, pieces nor arrivals change a bit of the result.
#pragma once
#include "common/sync.cuh"
#include "gemm/small_split.cuh"

namespace tessera::gemm {

enum : int { kMergeFull = 1, kMergeFree = 2 };  // named barriers

// What the epilogue needs of a thread's rows (g and g + 8 of each strip), loaded before the sums are complete.
template <class C>
struct RowScales {
  float scale[C::kStrips][2], bias[C::kStrips][2];
  i32 offset[C::kStrips][2];

  template <class T>
  TESSERA_DEVICE void load(const SmallArgs<T>& p, int row) {
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = row + 16 * i + 8 * half;
        const bool real = n < p.n;
        scale[i][half] = real ? p.row_scale[n] : 0;
        offset[i][half] = real ? p.offset[n] : 0;
        bias[i][half] = real && p.bias ? to_float(p.bias[n]) : 0;
      }
    }
  }
};

// The same of the tile's tokens: lane l holds tokens l and l + 32, and all lanes fetch what two of theirs need.
struct TokenPair {
  float scale[2];
  i32 sum[2];
};

template <class C>
struct TokenScales {
  static constexpr int kWords = div_up(C::kTokens, kWarp);
  float scale[kWords];
  i32 sum[kWords];

  template <class T>
  TESSERA_DEVICE void load(const SmallArgs<T>& p, int first) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int m = first + i * kWarp + lane_id();
      scale[i] = m < p.m ? p.token_scale[m] : 0;
      sum[i] = m < p.m ? p.token_sum[m] : 0;
    }
  }
  // Tokens 2 t and 2 t + 1 of atom `j`.
  TESSERA_DEVICE TokenPair pair(int j) const {
    TokenPair x;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int lane = j % 4 * kAtom + 2 * (lane_id() % 4) + e;
      x.scale[e] = __shfl_sync(0xffffffffu, scale[j / 4], lane);
      x.sum[e] = __shfl_sync(0xffffffffu, sum[j / 4], lane);
    }
    return x;
  }
};

// Sums of the slices in one: slice 0 has the total.
template <class C>
TESSERA_DEVICE void merge_slices(Sums<C>& sums, u32 merge, int slice, int row_warp, bool first, bool more) {
  constexpr int kQuads = C::kStrips * C::kAtoms, kConsumers = C::kWarps * kWarp;
  const auto at = [&](int s, int quad) {
    return merge + (((s - 1) * C::kRowWarps + row_warp) * kQuads + quad) * 512 + lane_id() * 16;
  };
  if (slice > 0) {
    if (!first) named_barrier_sync(kMergeFree, kConsumers);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const auto& d = sums.d[i / C::kAtoms][i % C::kAtoms][0];
      store_shared(at(slice, i), {u32(d[0]), u32(d[1]), u32(d[2]), u32(d[3])});
    }
    named_barrier_arrive(kMergeFull, kConsumers);
    return;
  }
  named_barrier_sync(kMergeFull, kConsumers);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    auto& d = sums.d[i / C::kAtoms][i % C::kAtoms][0];
#pragma unroll
    for (int s = 1; s < C::kSlices; ++s) {
      const uint4 part = load_shared(at(s, i));
      d[0] += part.x, d[1] += part.y, d[2] += part.z, d[3] += part.w;
    }
  }
  if (more) named_barrier_arrive(kMergeFree, kConsumers);
}

// Sums to y. `row` and `token`: those of this thread's first sum, d[0][0][0].
template <class C, class T>
TESSERA_DEVICE void store_tile(const SmallArgs<T>& p, const Sums<C>& sums, const RowScales<C>& rows,
                               const TokenScales<C>& tokens, int row, int token) {
  u32 at = token * p.n + row;  // y has less than 2^31 elements
#pragma unroll
  for (int j = 0; j < C::kAtoms; ++j, at += kAtom * p.n) {
    const TokenPair x = tokens.pair(j);
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, t = e % 2, below = 16 * i + 8 * half;
        if (token + kAtom * j + t >= p.m || row + below >= p.n) continue;
        p.y[at + t * p.n + below] = from_float<T>(finish(sums.d[i][j][0][e], rows.offset[i][half], x.sum[t],
                                                         rows.scale[i][half], x.scale[t], rows.bias[i][half]));
      }
  }
}

template <class C, class T>
TESSERA_DEVICE void small_consume(const SmallArgs<T>& p, const SmallRing<C>& ring, const Cut& cut) {
  const int slice = warp_id() / C::kRowWarps, row_warp = warp_id() % C::kRowWarps;
  const int begin = cut.start(blockIdx.x), end = cut.start(blockIdx.x + 1);
  RingPosition<C::kStages> position;
  RowScales<C> rows;
  TokenScales<C> tokens;
  Unit<C> at = Unit<C>::of(p, begin);
  int own = begin + slice;  // this slice's next unit
  for (int unit = begin; unit < end; at.next_tile(p)) {
    const int row = (at.stack * C::kPanels * 4 + row_warp * C::kStrips) * 16 + lane_id() / 4;
    const int token = at.atom(div_up(p.m, kAtom)) * kAtom;
    const int first = unit - at.step, stop = min(end, first + p.steps);
    if (slice == 0) rows.load(p, row);
    if (unit == begin) await_predecessor();
    if (slice == 0) tokens.load(p, token);
    Sums<C> sums;
    sums.clear();
    for (; own < stop; own += C::kSlices, position.step()) {
      await_phase(ring.full(position.stage), position.phase);
      multiply_step(sums, ring.weights(position.stage, slice), ring.tokens(position.stage, slice), row_warp);
      __syncwarp();
      if (kArrivals > 1 || lane_id() == 0) mbarrier_arrive(ring.empty(position.stage));
    }
    sums.join();
    if constexpr (C::kSlices > 1) merge_slices(sums, ring.merge(), slice, row_warp, unit == begin, stop < end);
    if (slice == 0) {
      const bool whole = first >= begin && stop == first + p.steps;
      if (whole || combine(p, Parts::of(cut, first, p.steps), row_warp, sums)) {
        store_tile(p, sums, rows, tokens, row, token + lane_id() % 4 * 2);
      }
    }
    unit = stop;
  }
}

// Grid: at most the units of the line, div_up(n, 64 kPanels) * div_up(m, kTokens) * steps; C::kThreads threads.
// `arrived` has gridDim.x * kRowWarps zeros and is left so.
template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    small_gemm(const u8* tiles, const float* row_scale, const i32* offset, const T* bias, const u8* codes,
               const float* token_scale, const i32* token_sum, T* y, i32* parts, u32* arrived,
               int m, int n, int steps) {
  extern __shared__ __align__(128) u8 smem[];
  const SmallArgs<T> p{tiles, row_scale, offset, bias, codes, token_scale, token_sum, y, parts, arrived,
                          m, n, steps};
  const SmallRing<C> ring{smem_address(smem)};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  const int units = div_up(n, kRows * C::kPanels) * div_up(m, C::kTokens) * steps;
  const Cut cut = Cut::of(units, gridDim.x);
  const int begin = cut.start(blockIdx.x), end = cut.start(blockIdx.x + 1);
  if (warp_id() < C::kWarps) {
    small_consume<C>(p, ring, cut);
  } else if (warp_id() == C::kWarps) {
    // The ring is full of weights, which no one writes, when the wait for the preceding kernel ends.
    small_produce<C>(p, ring, begin, end, FillWeights<C, T>{p, ring}, [] {});
    await_predecessor();
  } else {
    small_produce<C>(p, ring, begin, end, FillTokens<C, T>{p, ring}, [] { await_predecessor(); });
  }
}

}  // namespace tessera::gemm
