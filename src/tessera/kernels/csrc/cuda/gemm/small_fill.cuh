// Sizes of the kernels for few tokens, their line of units, and the warps that fill the ring.
#pragma once
#include "common/cut.cuh"
#include "common/ring.cuh"
#include "common/tiled.cuh"
#include "elementwise/dependency.cuh"
#include "gemm/dequant.cuh"

namespace tessera::gemm {

// Product: what is multiplied and how (small_int8.cuh, small_half.cuh). kTokens: tokens of a tile, a multiple of 8.
// kPanels: weight tiles of 64 rows that lie over one another. kStrips: 16-row strips a warp multiplies. kSlices: sets
// of warps that take the steps of K in turn.
template <class Product_, int kTokens_, int kPanels_, int kStrips_, int kSlices_, int kStages_>
struct Small {
  using Product = Product_;
  using Weights = typename Product::Weights;
  using Sum = typename Product::Sum;
  static constexpr int kTokens = kTokens_, kPanels = kPanels_, kStrips = kStrips_, kSlices = kSlices_;
  static constexpr int kStages = kStages_;
  static constexpr int kAtoms = kTokens / kAtom;
  static constexpr int kRowWarps = 4 * kPanels / kStrips, kWarps = kRowWarps * kSlices;
  static constexpr int kThreads = (kWarps + 2) * kWarp;  // and two producers
  static constexpr int kTileBytes = Weights::kTileBytes;
  static constexpr int kTogether = kPanels % Weights::kTogether == 0 ? Weights::kTogether : 1;  // panels of a copy
  static constexpr int kTokenBytes = kTokens * Product::kTokenBytes;
  static constexpr int kStageBytes = round_up(kSlices * (kPanels * kTileBytes + kTokenBytes), Product::kStageAlignment);
  static constexpr int kSums = kPanels * kRows * kTokens;  // of an output tile
  static constexpr int kMergeBytes = (kSlices - 1) * kSums * 4;
  static constexpr int kSmem = kStages * (kStageBytes + 16) + kMergeBytes;
  static constexpr bool kTwo = kSmem <= 112 * 1024 && kTokens * kStrips <= Product::kSumsOfTwoBlocks;
  static constexpr int kBlocks = kTwo ? 2 : 1;  // that share an SM
  static_assert(kTokens % kAtom == 0 && 4 * kPanels % kStrips == 0 && kTokens <= 64, "whole tiles");
};

// Where a unit of the line lies: a step of K of one output tile. Tokens are next fastest.
template <class C>
struct Unit {
  int step, token_tile, stack;
  template <class Args>
  TESSERA_DEVICE static Unit of(const Args& p, int unit) {
    const int tiles = div_up(p.m, C::kTokens), tile = unit / p.steps;
    return {unit - tile * p.steps, tile % tiles, tile / tiles};
  }
  template <class Args>
  TESSERA_DEVICE void next_tile(const Args& p) {
    step = 0;
    if ((token_tile + 1) * C::kTokens < p.m) ++token_tile;
    else token_tile = 0, ++stack;
  }
};

// kStages stages of [kSlices] token tiles and [kPanels / kTogether][kSlices][kTogether] weight tiles; then for each a
// full and an empty barrier; then the merge buffer.
template <class C>
struct SmallRing {
  u32 base;
  TESSERA_DEVICE u32 tokens(int stage, int slice) const {
    return base + stage * C::kStageBytes + slice * C::kTokenBytes;
  }
  TESSERA_DEVICE u32 weights(int stage, int panel, int slice) const {
    const int tile = (panel / C::kTogether * C::kSlices + slice) * C::kTogether + panel % C::kTogether;
    return tokens(stage, C::kSlices) + tile * C::kTileBytes;
  }
  TESSERA_DEVICE u32 full(int stage) const { return base + C::kStages * C::kStageBytes + stage * 16; }
  TESSERA_DEVICE u32 empty(int stage) const { return full(stage) + 8; }
  TESSERA_DEVICE u32 merge() const { return base + C::kStages * (C::kStageBytes + 16); }

  // One thread; a block barrier must follow.
  TESSERA_DEVICE void init() const {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(full(s), kBulkCopy ? 2 : 2 * kWarp);
      mbarrier_init(empty(s), C::kWarps * kArrivals);
    }
#if __CUDA_ARCH__ >= 900
    fence_barrier_init();
#endif
  }
};

template <bool kOnce>
TESSERA_DEVICE void ring_copy(u32 to, const u8* from, int bytes, u32 barrier) {
  if constexpr (!kBulkCopy) {
    for (int i = lane_id() * 16; i < bytes; i += kWarp * 16) cp_async(to + i, from + i);
  } else if constexpr (kOnce) {
    bulk_load(to, from, bytes, barrier, policy_evict_first());
  } else {
    bulk_load(to, from, bytes, barrier);
  }
}

// Fills stage `s` with `count` units from `at` on, which moves past them. What is contiguous in memory is one copy.
template <class C, class Args>
struct FillWeights {
  const Args& p;
  SmallRing<C> ring;
  TESSERA_DEVICE void operator()(int s, Unit<C>& at, int count) const {
    constexpr int kStored = C::Weights::kTogether, kBytes = C::kTogether * C::kTileBytes;
    constexpr bool kRuns = C::kTogether == kStored;  // steps follow one another
    const u32 full = ring.full(s);
    if constexpr (kBulkCopy) mbarrier_arrive_expect(full, count * C::kPanels * C::kTileBytes);
#pragma unroll 1
    for (int i = 0; i < count;) {
      const int run = kRuns ? min(count - i, p.steps - at.step) : 1;
#pragma unroll
      for (int r = 0; r < C::kPanels; r += C::kTogether) {
        // Past the last panels those again: their rows are not stored.
        const int last = round_up(div_up(p.n, kRows), C::kTogether) - C::kTogether;
        const int panel = C::kPanels == C::kTogether ? at.stack * C::kPanels : min(at.stack * C::kPanels + r, last);
        const i64 tile = static_cast<i64>(panel / kStored * p.steps + at.step) * kStored + panel % kStored;
        ring_copy<true>(ring.weights(s, r, i), p.tiles + tile * C::kTileBytes, run * kBytes, full);
      }
      i += run, at.step += run;
      if (at.step == p.steps) at.next_tile(p);
    }
    if constexpr (!kBulkCopy) cp_async_arrive(full);
  }
};

// A producer warp. On sm_90 each lane starts one stage, and the first lane goes on; else all lanes copy. `ready`
// returns once what is to be copied may be read.
template <class C, class Args, class Fill, class Ready>
TESSERA_DEVICE void small_produce(const Args& p, const SmallRing<C>& ring, int begin, int end, Fill fill,
                                  Ready ready) {
  const auto count = [&](int unit) { return min(C::kSlices, end - unit); };
  RingPosition<C::kStages> at;
  int unit = begin;
  if constexpr (kBulkCopy) {
    static_assert(C::kStages <= kWarp, "a lane a stage");
    const int own = begin + lane_id() * C::kSlices;
    Unit<C> first = Unit<C>::of(p, own);
    ready();
    if (lane_id() < C::kStages && own < end) fill(lane_id(), first, count(own));
    if (lane_id() > 0) return;
    unit += C::kStages * C::kSlices, at.phase = 1;
  } else {
    ready();
  }
  Unit<C> next = Unit<C>::of(p, unit);
  for (; unit < end; unit += C::kSlices, at.step()) {
    await_phase(ring.empty(at.stage), at.phase ^ 1);
    fill(at.stage, next, count(unit));
  }
}

}  // namespace tessera::gemm
