// Sums of an output tile put together: those of a block's slices, and those of blocks where a cut divides the tile.
#pragma once
#include "common/sync.cuh"
#include "common/types.cuh"
#include "gemm/small_fill.cuh"

namespace tessera::gemm {

enum : int { kMergeFull = 1, kMergeFree = 2 };  // named barriers

TESSERA_DEVICE u32 word_of(i32 sum) { return sum; }
TESSERA_DEVICE u32 word_of(float sum) { return __float_as_uint(sum); }
TESSERA_DEVICE void add_word(i32& sum, u32 word) { sum += word; }
TESSERA_DEVICE void add_word(float& sum, u32 word) { sum += __uint_as_float(word); }
template <class Sum>
TESSERA_DEVICE uint4 words_of(const Sum (&d)[4]) {
  return {word_of(d[0]), word_of(d[1]), word_of(d[2]), word_of(d[3])};
}
template <class Sum>
TESSERA_DEVICE void add_words(Sum (&d)[4], const uint4& x) {
  add_word(d[0], x.x), add_word(d[1], x.y), add_word(d[2], x.z), add_word(d[3], x.w);
}

// Sums of the slices in one, in their order: slice 0 has the total.
template <class C, class Sums>
TESSERA_DEVICE void merge_slices(Sums& sums, u32 merge, int slice, int row_warp, bool first, bool more) {
  constexpr int kQuads = C::kStrips * C::kAtoms, kConsumers = C::kWarps * kWarp;
  const auto at = [&](int s, int quad) {
    return merge + (((s - 1) * C::kRowWarps + row_warp) * kQuads + quad) * 512 + lane_id() * 16;
  };
  if (slice > 0) {
    if (!first) named_barrier_sync(kMergeFree, kConsumers);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) store_shared(at(slice, i), words_of(sums.quad(i)));
    named_barrier_arrive(kMergeFull, kConsumers);
    return;
  }
  named_barrier_sync(kMergeFull, kConsumers);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
#pragma unroll
    for (int s = 1; s < C::kSlices; ++s) add_words(sums.quad(i), load_shared(at(s, i)));
  }
  if (more) named_barrier_arrive(kMergeFree, kConsumers);
}

// Which pieces of the line have steps of the tile that begins with unit `begin`.
struct Parts {
  int first, last;
  bool inside;  // the first of them has begun with another tile
  TESSERA_DEVICE static Parts of(const Cut& cut, int begin, int steps) {
    const int first = cut.piece_of(begin);
    return {first, cut.piece_of(begin + steps - 1), begin != cut.start(first)};
  }
};

// Whether this warp is the last of those with parts of its rows: `sums` then holds the whole. The others leave theirs
// for it. Parts are added in the order of pieces, so that floats do not depend on who comes last. A piece has at most
// two such tiles: a place for each.
template <class C, class Args, class Sums>
TESSERA_DEVICE bool combine(const Args& p, const Parts& parts, int row_warp, Sums& sums) {
  constexpr int kQuads = C::kStrips * C::kAtoms;
  const auto part_of = [&](int piece) {
    const int place = 2 * piece + (piece == parts.first && parts.inside);
    return reinterpret_cast<uint4*>(p.parts) + (place * C::kRowWarps + row_warp) * (kQuads * kWarp) + lane_id();
  };
  const u32 others = parts.last - parts.first;
  const int own = blockIdx.x;
  u32* arrived = p.arrived + parts.first * C::kRowWarps + row_warp;
  u32 before = lane_id() == 0 ? load_acquire(arrived) : 0;
  if (__shfl_sync(0xffffffffu, before, 0) != others) {
    uint4* part = part_of(own);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) part[i * kWarp] = words_of(sums.quad(i));
    __syncwarp();
    if (lane_id() == 0) before = add_acquire_release(arrived);
    if (__shfl_sync(0xffffffffu, before, 0) != others) return false;
  }
  __syncwarp();
  if (lane_id() == 0) *arrived = 0;
  typename C::Sum total[kQuads][4] = {};
  for (int piece = parts.first; piece <= parts.last; ++piece) {
    const uint4* part = part_of(piece);
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      add_words(total[i], piece == own ? words_of(sums.quad(i)) : __ldcg(part + i * kWarp));
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums.quad(i)[e] = total[i][e];
  }
  return true;
}

}  // namespace tessera::gemm
