// Results of paged_decode: the warps of a block put together, and blocks that share a (sequence, KV head) pair.
#pragma once
#include "attention/decode_warp.cuh"
#include "common/cut.cuh"
#include "common/sync.cuh"

namespace tessera {

// The four warps' results in shared memory: merge[warp][head][kRow] and after it (max, sum) [warp][head].
template <class D>
TESSERA_DEVICE void publish(WarpState<D>& state, float* merge, int warp) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  float2* stats = reinterpret_cast<float2*>(merge + D::kWarps * D::kHeads * D::kRow);
#pragma unroll
  for (int n = 0; n < D::kHeadTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = state.sum[n][e];
#pragma unroll
      for (int lanes = 4; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
      const int head = warp * D::kHeads + 8 * n + 2 * t + e;
      if (g == 0) stats[head] = make_float2(state.maximum[n][e], sum);
#pragma unroll
      for (int m = 0; m < WarpState<D>::kSteps; ++m) {
        merge[head * D::kRow + 16 * m + g] = state.o[m][n][e];
        merge[head * D::kRow + 16 * m + g + 8] = state.o[m][n][e + 2];
      }
    }
  }
  named_barrier_sync(1, D::kConsumers);
}

// Where a piece's partial result of a pair lies: the pair its piece starts with, or the one it ends with.
struct Split {
  int first, last;      // pieces that hold parts of the pair
  bool starts_at_first; // the pair is the first thing in piece `first`
  TESSERA_DEVICE static Split of(const Cut& cut, int unit, int units) {
    const int first = cut.piece_of(unit);
    return {first, cut.piece_of(unit + units - 1), unit == cut.start(first)};
  }
  TESSERA_DEVICE int slot(int piece) const { return 2 * piece + (piece == first && !starts_at_first); }
};

// Where a part of a pair lies: values of a head `row` floats apart, (max, sum) of a head `row_stats` pairs apart.
struct Part {
  float* values;
  float2* stats;
  int row, row_stats;
};

// The part of `slot` in global memory.
template <class D>
TESSERA_DEVICE Part part_of(const DecodeArgs& args, int slot) {
  constexpr int kDim = D::Page::kDim;
  float2* stats = reinterpret_cast<float2*>(args.partials + 2ll * gridDim.x * D::kHeads * kDim);
  return {args.partials + static_cast<i64>(slot) * D::kHeads * kDim, stats + slot * D::kHeads, kDim, 1};
}

// This block's part, left in the merge buffer: over the values of warp 0, with the statistics in the gaps of rows.
template <class D>
TESSERA_DEVICE Part part_here(float* merge) {
  return {merge, reinterpret_cast<float2*>(merge + D::Page::kDim), D::kRow, D::kRow / 2};
}

// The warps' results in one: each thread hands take(head, d, value, max, sum) what it put together.
template <class D, class Take>
TESSERA_DEVICE void merge_warps(const float* merge, int group, Take take) {
  const float2* stats = reinterpret_cast<const float2*>(merge + D::kWarps * D::kHeads * D::kRow);
  constexpr int kDim = D::Page::kDim;
  for (int i = threadIdx.x; i < group * kDim; i += D::kConsumers) {
    const int head = i / kDim, d = i % kDim;
    float top = stats[head].x;
#pragma unroll
    for (int w = 1; w < D::kWarps; ++w) top = fmaxf(top, stats[w * D::kHeads + head].x);
    float sum = 0, value = 0;
#pragma unroll
    for (int w = 0; w < D::kWarps; ++w) {
      const float2 part = stats[w * D::kHeads + head];
      const float weight = exp2_approx(part.x - top);
      sum += part.y * weight;
      value += merge[(w * D::kHeads + head) * D::kRow + d] * weight;
    }
    take(head, d, value, top, sum);
  }
}

// Leaves this block's part in `to`; with to = part_here a thread overwrites only values that it alone reads.
template <class D>
TESSERA_DEVICE void write_part(const float* merge, int group, const Part& to) {
  merge_warps<D>(merge, group, [&](int head, int d, float value, float top, float sum) {
    to.values[head * to.row + d] = value;
    if (d == 0) to.stats[head * to.row_stats] = make_float2(top, sum);
  });
}

// Whether `others` have been counted already; what they did before is then acquired.
TESSERA_DEVICE bool all_arrived(const u32* count, u32 others) {
  return load_acquire(count) == others;
}

// Puts a pair together from the parts of pieces split.first .. split.last, this block's from the merge buffer if it is
// `here`: a warp a head, kDim / 32 values a lane.
template <class D>
TESSERA_DEVICE void combine(const DecodeArgs& args, const Split& split, float* merge, bool here,
                            typename D::T* out) {
  constexpr int kDim = D::Page::kDim, kWidth = kDim / kWarp;
  const int own = here ? blockIdx.x : -1;
  const Part own_part = part_here<D>(merge);
  const float2* stats = reinterpret_cast<const float2*>(args.partials + 2ll * gridDim.x * D::kHeads * kDim);
  for (int head = threadIdx.x / kWarp; head < args.group; head += D::kWarps) {
    float top = -1e30f, sum = 0;
    Vec<float, kWidth> acc = {};
    float2 own_values[kWidth / 2];
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i)
      own_values[i] =
          here ? reinterpret_cast<float2*>(own_part.values + head * own_part.row)[lane_id() * kWidth / 2 + i]
               : make_float2(0, 0);
    for (int first = split.first; first <= split.last; first += D::kPartsAhead) {
      const int n = min(D::kPartsAhead, split.last + 1 - first);
      const int piece = first + min(lane_id(), n - 1);
      float2 stat = piece == own ? own_part.stats[head * own_part.row_stats]
                                 : __ldcg(stats + split.slot(piece) * D::kHeads + head);
      float2 part[D::kPartsAhead][kWidth / 2];  // every load is on its way before the first use
#pragma unroll
      for (int j = 0; j < D::kPartsAhead; ++j) {
        const i64 slot = split.slot(first + j);
        const float2* from = reinterpret_cast<const float2*>(args.partials + (slot * D::kHeads + head) * kDim) +
                             lane_id() * (kWidth / 2);
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i)
          part[j][i] = j < n && first + j != own ? __ldcg(from + i) : own_values[i];
      }
      if (lane_id() >= n) stat = make_float2(-1e30f, 0);
      const float next = fmaxf(top, warp_reduce(stat.x, Max{}));
      const float decay = exp2_approx(top - next);
      const float weight = exp2_approx(stat.x - next);
      sum = sum * decay + warp_reduce(stat.y * weight, Sum{});
#pragma unroll
      for (int i = 0; i < kWidth; ++i) acc[i] *= decay;
      top = next;
#pragma unroll
      for (int j = 0; j < D::kPartsAhead; ++j) {
        const float w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) {
          acc[2 * i] += w * part[j][i].x;
          acc[2 * i + 1] += w * part[j][i].y;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kWidth; i += 2)
      *reinterpret_cast<u32*>(out + head * kDim + lane_id() * kWidth + i) =
          pack2<typename D::T>(acc[i] / sum, acc[i + 1] / sum);
  }
}

}  // namespace tessera
