// Results of paged_decode: the warps of a block put together, and blocks that share a (sequence, KV head) pair.
#pragma once
#include "attention/decode_warp.cuh"
#include "common/sync.cuh"

namespace tessera {

// First unit of piece `c` of `pieces`, and the piece that holds a unit.
TESSERA_DEVICE int piece_start(int c, int units, int pieces) { return static_cast<int>(static_cast<i64>(c) * units / pieces); }
TESSERA_DEVICE int piece_of(int unit, int units, int pieces) {
  return static_cast<int>((static_cast<i64>(unit + 1) * pieces - 1) / units);
}

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
  TESSERA_DEVICE int slot(int piece) const { return 2 * piece + (piece == first && !starts_at_first); }
};

// Writes the pair's output, or this piece's part of it; `query` is the pair's first row of output.
template <class D>
TESSERA_DEVICE void write_merged(const DecodeArgs& args, const float* merge, typename D::T* out, int slot) {
  const float2* stats = reinterpret_cast<const float2*>(merge + D::kWarps * D::kHeads * D::kRow);
  constexpr int kDim = D::Page::kDim;
  float* partial = args.partials + static_cast<i64>(slot) * D::kHeads * kDim;
  float2* partial_stats = reinterpret_cast<float2*>(args.partials + 2ll * gridDim.x * D::kHeads * kDim) + slot * D::kHeads;
  for (int i = threadIdx.x; i < args.group * kDim; i += D::kConsumers) {
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
    if (slot < 0) {
      out[i] = from_float<typename D::T>(value / sum);
    } else {
      partial[i] = value;
      if (d == 0) partial_stats[head] = make_float2(top, sum);
    }
  }
}

// The count before one is added. What the block wrote before its barrier is released, what others did is acquired.
TESSERA_DEVICE u32 add_acquire_release(u32* count) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}

// Puts a pair together from the parts of pieces split.first .. split.last: a warp a head, kDim / 32 values a lane.
template <class D>
TESSERA_DEVICE void combine(const DecodeArgs& args, const Split& split, typename D::T* out) {
  constexpr int kDim = D::Page::kDim, kWidth = kDim / kWarp;
  constexpr int kAhead = 8;  // parts on their way at once
  using Values = Vec<float, kWidth>;
  const float2* stats = reinterpret_cast<const float2*>(args.partials + 2ll * gridDim.x * D::kHeads * kDim);
  for (int head = threadIdx.x / kWarp; head < args.group; head += D::kWarps) {
    float top = -1e30f, sum = 0;
    Values acc = {};
    Values part[kAhead];
    const auto load = [&](int piece) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const i64 slot = split.slot(min(piece + j, split.last));
        const float* from = args.partials + (slot * D::kHeads + head) * kDim + lane_id() * kWidth;
#pragma unroll
        for (int i = 0; i < kWidth; i += 2) {
          const float2 x = __ldcg(reinterpret_cast<const float2*>(from + i));
          part[j][i] = x.x;
          part[j][i + 1] = x.y;
        }
      }
    };
    for (int first = split.first; first <= split.last; first += kWarp) {
      load(first);  // before its weights are known
      const int n = min(kWarp, split.last + 1 - first);
      const float2 none = make_float2(-1e30f, 0);
      const float2 stat = lane_id() < n ? __ldcg(stats + split.slot(first + lane_id()) * D::kHeads + head) : none;
      const float next = fmaxf(top, warp_reduce(stat.x, Max{}));
      const float decay = exp2_approx(top - next);
      const float weight = exp2_approx(stat.x - next);
      sum = sum * decay + warp_reduce(stat.y * weight, Sum{});
#pragma unroll
      for (int i = 0; i < kWidth; ++i) acc[i] *= decay;
      top = next;
      for (int done = 0; done < n; done += kAhead) {
        if (done > 0) load(first + done);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          const float w = __shfl_sync(0xffffffffu, weight, min(done + j, kWarp - 1));
#pragma unroll
          for (int i = 0; i < kWidth; ++i) acc[i] += done + j < n ? w * part[j][i] : 0;
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
