// Sizes of small_gemm, its line of units, and the warps that fill the ring.
#pragma once
#include "common/cut.cuh"
#include "common/ring.cuh"
#include "common/tiled.cuh"
#include "elementwise/dependency.cuh"
#include "gemm/dequant.cuh"

namespace tessera::gemm {

// W: Int4<group> or Int8. kTokens: tokens of a tile, a multiple of 8. kPanels: weight tiles of 64 rows that lie over
// one another. kStrips: 16-row strips a warp multiplies. kSlices: sets of warps that take the steps of K in turn.
template <class W, int kTokens_, int kPanels_, int kStrips_, int kSlices_, int kStages_>
struct Small {
  using Weights = W;
  static constexpr int kTokens = kTokens_, kPanels = kPanels_, kStrips = kStrips_, kSlices = kSlices_;
  static constexpr int kStages = kStages_;
  static constexpr int kAtoms = kTokens / kAtom;
  static constexpr int kRowWarps = 4 * kPanels / kStrips, kWarps = kRowWarps * kSlices;
  static constexpr int kThreads = (kWarps + 2) * kWarp;  // and two producers
  static constexpr int kTokenBytes = kTokens * kStep;
  static constexpr int kStageBytes = kSlices * (kPanels * W::kTileBytes + kTokenBytes);
  static constexpr int kSums = kPanels * kRows * kTokens;  // of an output tile
  static constexpr int kMergeBytes = (kSlices - 1) * kSums * 4;
  static constexpr int kSmem = kStages * (kStageBytes + 16) + kMergeBytes;
  static constexpr int kBlocks = kSmem <= 112 * 1024 && kTokens * kStrips <= 32 ? 2 : 1;  // that share an SM
  static_assert(kTokens % kAtom == 0 && 4 * kPanels % kStrips == 0 && kTokens <= 64, "whole tiles");
};

template <class T>
struct SmallArgs {
  const u8* tiles;           // [div_up(n, 64)][steps][kTileBytes], less than 2^31 tiles
  const float* row_scale;    // [64 panels]
  const i32* offset;         // [64 panels]
  const T* bias;             // [n] or null
  const u8* codes;           // [steps][div_up(m, 8)][8][128]
  const float* token_scale;  // [m]
  const i32* token_sum;      // [m]
  T* y;                      // [m, n]
  i32* parts;                // [2 blocks][kSums]
  u32* arrived;              // [blocks][kRowWarps] zeros
  int m, n, steps;
};

// Where a unit of the line lies: a step of K of one output tile. Tokens are next fastest.
template <class C>
struct Unit {
  int step, token_tile, stack;
  template <class T>
  TESSERA_DEVICE static Unit of(const SmallArgs<T>& p, int unit) {
    const int tiles = div_up(p.m, C::kTokens), tile = unit / p.steps;
    return {unit - tile * p.steps, tile % tiles, tile / tiles};
  }
  template <class T>
  TESSERA_DEVICE void next_tile(const SmallArgs<T>& p) {
    step = 0;
    if ((token_tile + 1) * C::kTokens < p.m) ++token_tile;
    else token_tile = 0, ++stack;
  }
  // First atom of the tile's tokens. The last tile begins early enough to be full, where there are so many.
  TESSERA_DEVICE int atom(int atoms) const { return min(token_tile * C::kAtoms, max(atoms - C::kAtoms, 0)); }
};

// kStages stages [kPanels][kSlices] weight tiles, [kSlices] token tiles; then for each a full and an empty barrier.
template <class C>
struct SmallRing {
  u32 base;
  TESSERA_DEVICE u32 weights(int stage, int tile) const {
    return base + stage * C::kStageBytes + tile * C::Weights::kTileBytes;
  }
  TESSERA_DEVICE u32 tokens(int stage, int tile) const {
    return weights(stage, C::kPanels * C::kSlices) + tile * C::kTokenBytes;
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

// Fill stage `s` with `count` units from `at` on, which moves past them. Units contiguous in memory are one copy.
template <class C, class T>
struct FillWeights {
  const SmallArgs<T>& p;
  SmallRing<C> ring;
  TESSERA_DEVICE void operator()(int s, Unit<C>& at, int count) const {
    constexpr int kBytes = C::Weights::kTileBytes;
    const u32 full = ring.full(s);
    if constexpr (kBulkCopy) mbarrier_arrive_expect(full, count * C::kPanels * kBytes);
#pragma unroll 1
    for (int i = 0; i < count;) {
      const int run = min(count - i, p.steps - at.step);
#pragma unroll
      for (int r = 0; r < C::kPanels; ++r) {
        // Past the last panel the last one again: those rows are not stored.
        const int panel = C::kPanels == 1 ? at.stack : min(at.stack * C::kPanels + r, div_up(p.n, kRows) - 1);
        const u8* from = p.tiles + static_cast<i64>(panel * p.steps + at.step) * kBytes;
        ring_copy<true>(ring.weights(s, r * C::kSlices + i), from, run * kBytes, full);
      }
      i += run, at.step += run;
      if (at.step == p.steps) at.next_tile(p);
    }
    if constexpr (!kBulkCopy) cp_async_arrive(full);
  }
};

// Whole atoms: nobody looks at what rows that are no tokens lead to.
template <class C, class T>
struct FillTokens {
  const SmallArgs<T>& p;
  SmallRing<C> ring;
  TESSERA_DEVICE void operator()(int s, Unit<C>& at, int count) const {
    constexpr int kAtomBytes = kAtom * kStep;
    const int atoms = div_up(p.m, kAtom), bytes = min(atoms, C::kAtoms) * kAtomBytes;
    const u32 full = ring.full(s);
    if constexpr (kBulkCopy) mbarrier_arrive_expect(full, count * bytes);
#pragma unroll 1
    for (int i = 0; i < count;) {
      const int run = atoms == C::kAtoms ? min(count - i, p.steps - at.step) : 1;
      const u8* from = p.codes + static_cast<i64>(at.step * atoms + at.atom(atoms)) * kAtomBytes;
      ring_copy<false>(ring.tokens(s, i), from, run * bytes, full);
      i += run, at.step += run;
      if (at.step == p.steps) at.next_tile(p);
    }
    if constexpr (!kBulkCopy) cp_async_arrive(full);
  }
};

// A producer warp. On sm_90 each lane starts one stage, and the first lane goes on; else all lanes copy. `ready`
// returns once what is to be copied may be read.
template <class C, class T, class Fill, class Ready>
TESSERA_DEVICE void small_produce(const SmallArgs<T>& p, const SmallRing<C>& ring, int begin, int end, Fill fill,
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
