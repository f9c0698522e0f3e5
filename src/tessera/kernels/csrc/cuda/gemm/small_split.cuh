// Output tiles that a cut of the line divides: the blocks' sums put together.
#pragma once
#include "gemm/small_tile.cuh"

namespace tessera::gemm {

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
// for it. Sums are integers, so the order of additions does not matter. A piece has at most two such tiles: a place
// for each.
template <class C, class T>
TESSERA_DEVICE bool combine(const SmallArgs<T>& p, const Parts& parts, int row_warp, Sums<C>& sums) {
  constexpr int kQuads = C::kStrips * C::kAtoms;
  const auto part_of = [&](int piece) {
    const int place = 2 * piece + (piece == parts.first && parts.inside);
    return p.parts + (place * C::kRowWarps + row_warp) * (kQuads * kWarp * 4) + lane_id() * 4;
  };
  const u32 others = parts.last - parts.first;
  const int own = blockIdx.x;
  u32* arrived = p.arrived + parts.first * C::kRowWarps + row_warp;
  u32 before = lane_id() == 0 ? load_acquire(arrived) : 0;
  if (__shfl_sync(0xffffffffu, before, 0) != others) {
    i32* part = part_of(own);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const auto& d = sums.d[i / C::kAtoms][i % C::kAtoms][0];
      *reinterpret_cast<int4*>(part + i * (kWarp * 4)) = {d[0], d[1], d[2], d[3]};
    }
    __syncwarp();
    if (lane_id() == 0) before = add_acquire_release(arrived);
    if (__shfl_sync(0xffffffffu, before, 0) != others) return false;
  }
  __syncwarp();
  if (lane_id() == 0) *arrived = 0;
  for (int piece = parts.first; piece <= parts.last; ++piece) {
    if (piece == own) continue;
    const int4* part = reinterpret_cast<const int4*>(part_of(piece));
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int4 x = __ldcg(part + i * kWarp);
      auto& d = sums.d[i / C::kAtoms][i % C::kAtoms][0];
      d[0] += x.x, d[1] += x.y, d[2] += x.z, d[3] += x.w;
    }
  }
  return true;
}

}  // namespace tessera::gemm
