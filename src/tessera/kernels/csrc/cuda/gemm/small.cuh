// y = x W^T for few tokens on mma.sync, built for bandwidth: weights are operand A and tokens lie on N.
//
// The steps of K of all output tiles form one line, and every block takes an equal piece of it. One warp keeps the ring
// full of weights, another of tokens; sets of warps take the steps in turn (slices) and put their sums together in
// shared memory; a tile that a cut divides is put together through global memory.
//
// C: a Small, whose Product has kTokenBytes, kStageAlignment, kSumsOfTwoBlocks, first_token of a unit's tile, and
//   Sums  of a warp: begin, add a step, end, and then quad(strip * kAtoms + atom), four sums as mma.cuh lays them out
//   Ends  what makes numbers of sums, for a thread's rows g and g + 8 of each strip: load_rows before the sums are
//         complete, even before the preceding kernel has ended; load_tokens; pair(atom), of two tokens, and a call
#pragma once
#include "gemm/small_split.cuh"

namespace tessera::gemm {

// Sums to y. `row` and `token`: those of this thread's first sum.
template <class C, class Args, class Sums, class Ends>
TESSERA_DEVICE void store_tile(const Args& p, Sums& sums, const Ends& ends, int row, int token) {
  u32 at = token * p.n + row;  // y has less than 2^31 elements
#pragma unroll
  for (int j = 0; j < C::kAtoms; ++j, at += kAtom * p.n) {
    const auto pair = ends.pair(j);
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, t = e % 2, below = 16 * i + 8 * half;
        if (token + kAtom * j + t >= p.m || row + below >= p.n) continue;
        p.y[at + t * p.n + below] =
            from_float<typename Args::T>(ends(sums.quad(i * C::kAtoms + j)[e], i, half, pair, t));
      }
  }
}

template <class C, class Args>
TESSERA_DEVICE void small_consume(const Args& p, const SmallRing<C>& ring, const Cut& cut) {
  using Product = typename C::Product;
  const int slice = warp_id() / C::kRowWarps, row_warp = warp_id() % C::kRowWarps;
  const int begin = cut.start(blockIdx.x), end = cut.start(blockIdx.x + 1);
  RingPosition<C::kStages> position;
  typename Product::template Ends<C> ends;
  Unit<C> at = Unit<C>::of(p, begin);
  int own = begin + slice;  // this slice's next unit
  for (int unit = begin; unit < end; at.next_tile(p)) {
    const int row = (at.stack * C::kPanels * 4 + row_warp * C::kStrips) * 16 + lane_id() / 4;
    const int token = Product::template first_token<C>(p, at);
    const int first = unit - at.step, stop = min(end, first + p.steps);
    typename Product::template Sums<C> sums;
    sums.begin(p, row);
    if (slice == 0) ends.load_rows(p, row);
    if (unit == begin) await_predecessor();
    if (slice == 0) ends.load_tokens(p, token);
    for (; own < stop; own += C::kSlices, position.step()) {
      await_phase(ring.full(position.stage), position.phase);
      sums.add(ring, position.stage, slice, row_warp);
      __syncwarp();
      if (kArrivals > 1 || lane_id() == 0) mbarrier_arrive(ring.empty(position.stage));
    }
    sums.end();
    if constexpr (C::kSlices > 1) merge_slices<C>(sums, ring.merge(), slice, row_warp, unit == begin, stop < end);
    if (slice == 0) {
      const bool whole = first >= begin && stop == first + p.steps;
      if (whole || combine<C>(p, Parts::of(cut, first, p.steps), row_warp, sums)) {
        store_tile<C>(p, sums, ends, row, token + lane_id() % 4 * 2);
      }
    }
    unit = stop;
  }
}

// Grid: at most the units of the line, div_up(n, 64 kPanels) * div_up(m, kTokens) * steps; C::kThreads threads.
// `p.arrived` has gridDim.x * kRowWarps zeros and is left so. `fill` brings tokens.
template <class C, class Args, class Fill>
TESSERA_DEVICE void small_run(const Args& p, const SmallRing<C>& ring, const Fill& fill) {
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  const int units = div_up(p.n, kRows * C::kPanels) * div_up(p.m, C::kTokens) * p.steps;
  const Cut cut = Cut::of(units, gridDim.x);
  const int begin = cut.start(blockIdx.x), end = cut.start(blockIdx.x + 1);
  if (warp_id() < C::kWarps) {
    small_consume<C>(p, ring, cut);
  } else if (warp_id() == C::kWarps) {
    // The ring is full of weights, which no one writes, when the wait for the preceding kernel ends.
    small_produce<C>(p, ring, begin, end, FillWeights<C, Args>{p, ring}, [] {});
    await_predecessor();
  } else {
    small_produce<C>(p, ring, begin, end, fill, [] { await_predecessor(); });
  }
}

}  // namespace tessera::gemm
