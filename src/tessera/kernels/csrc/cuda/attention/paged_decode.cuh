// Attention of one query token a sequence over a paged cache: split-KV flash decoding (Dao et al. 2023) with the
// online softmax of Milakov and Gimelshein 2018. Keys lie on the M axis of mma and the query heads of a KV head on
// N, so heads that share a KV head share every byte and every instruction.
//
// The pages of all (sequence, KV head) pairs form one line of units, cut into equal pieces, one a block: blocks end
// together whatever the lengths. A pair cut by a piece's end is put together by the last block that has a part of
// it. In a block a producer warp streams pages through a ring while each of four warps takes 16 of a page's tokens.
#pragma once
#include "attention/batch.cuh"
#include "attention/page16.cuh"
#include "attention/ring.cuh"
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

template <class P, int kHeadTiles_, int kStages_>
struct Decode {
  using Page = P;
  using T = typename P::Element;
  static constexpr int kHeadTiles = kHeadTiles_;
  static constexpr int kHeads = 8 * kHeadTiles;  // query heads a KV head can have
  static constexpr int kStages = kStages_;
  static constexpr int kWarps = 4;
  static constexpr int kConsumers = kWarps * kWarp;
  static constexpr int kThreads = kConsumers + kWarp;
  static constexpr int kRow = P::kDim + 4;       // floats a head in the merge buffer; the 4 spread its banks
  using KvRing = Ring<kStages, P::kPartBytes>;
  static constexpr int kMergeFloats = kWarps * kHeads * (kRow + 2);
  static constexpr int kSmem = KvRing::kBytes + kMergeFloats * 4;
};

struct DecodeArgs {
  Batch batch;
  const i32* block_tables;
  int table_stride, kv_heads, group;
  float scale_log2;  // softmax scale * log2(e)
  float* partials;   // [2 grid][kHeads][D], then [2 grid][kHeads] of (max, sum)
  u32* arrived;      // [grid], zero between launches
};

// A run of consecutive pages of one (sequence, KV head) pair.
template <class P>
struct Segment {
  int seq, head, page, context;
  TESSERA_DEVICE int pages() const { return div_up(context, P::kTokens); }
  TESSERA_DEVICE int count(int left) const { return min(left, pages() - page); }
  // To the start of the next pair.
  TESSERA_DEVICE void next(const DecodeArgs& args);
};

// Tokens in the cache of a sequence that this kernel serves: one that brings a single query token.
TESSERA_DEVICE int decode_context(const Batch& batch, int s) {
  return batch.query_len(s) == 1 ? batch.context_lens[s] : 0;
}

template <class P>
TESSERA_DEVICE void Segment<P>::next(const DecodeArgs& args) {
  page = 0;
  if (++head < args.kv_heads) return;
  head = 0;
  do ++seq;
  while (seq < args.batch.seqs && (context = decode_context(args.batch, seq)) == 0);
}

// First unit of piece `c` of `pieces`, and the piece that holds a unit.
TESSERA_DEVICE int piece_start(int c, int units, int pieces) { return static_cast<int>(static_cast<i64>(c) * units / pieces); }
TESSERA_DEVICE int piece_of(int unit, int units, int pieces) {
  return static_cast<int>((static_cast<i64>(unit + 1) * pieces - 1) / units);
}

template <class D>
TESSERA_DEVICE void produce(const DecodeArgs& args, const char* cache, const typename D::KvRing& ring,
                            Segment<typename D::Page> at, int left) {
  using P = typename D::Page;
  RingPosition<D::kStages> position;
  while (left > 0) {
    const int first = at.page, count = at.count(left);
    const i32* table = args.block_tables + static_cast<i64>(at.seq) * args.table_stride;
    int ids = 0;
    for (int i = 0; i < count; ++i) {
      if (i % kWarp == 0) ids = i + lane_id() < count ? table[first + i + lane_id()] : 0;
      const i64 page = __shfl_sync(0xffffffffu, ids, i % kWarp);
      const int rows = min(P::kTokens, at.context - (first + i) * P::kTokens);
      const char* slice = cache + P::slice_offset(page, at.head, args.kv_heads);
      // Rows past the context may hold anything, NaN too: scores of K are masked, but 0 * V must be 0.
      ring.fill(position, slice, rows * P::kRowBytes, rows * P::kRowBytes);
      ring.fill(position, slice + P::kPartBytes, rows * P::kRowBytes, P::kPartBytes);
    }
    left -= count;
    at.next(args);
  }
}

// State of one warp: for heads 2t, 2t + 1 of each tile the running maximum (log2) and this lane's part of the sum;
// output as mma leaves it: rows d = 16 m + g, + 8, columns heads 2t, 2t + 1.
template <class D>
struct WarpState {
  static constexpr int kSteps = D::Page::kDim / 16;
  u32 q[D::kHeadTiles][kSteps][2];
  float o[kSteps][D::kHeadTiles][4];
  float maximum[D::kHeadTiles][2];
  float sum[D::kHeadTiles][2];

  TESSERA_DEVICE void start(const typename D::T* query, int group) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < D::kHeadTiles; ++n) {
      const bool real = g + 8 * n < group;
      const u32* row = reinterpret_cast<const u32*>(query + static_cast<i64>(real ? g + 8 * n : 0) * D::Page::kDim);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        q[n][k][0] = real ? row[8 * k + t] : 0;
        q[n][k][1] = real ? row[8 * k + t + 4] : 0;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        maximum[n][e] = -1e30f;  // finite, so that a warp without tokens has weight exp2(-1e30 - max) = 0
        sum[n][e] = 0;
      }
#pragma unroll
      for (int m = 0; m < kSteps; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0;
    }
  }

  // Scores of this warp's 16 tokens to probabilities, as B fragments of the second product.
  TESSERA_DEVICE void softmax(float (&s)[D::kHeadTiles][4], u32 (&p)[D::kHeadTiles][2], int tokens, float scale_log2) {
    const int g = lane_id() / 4;
    bool rescale = false;
    float alpha[D::kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < D::kHeadTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = g + (e / 2) * 8 < tokens ? s[n][e] * scale_log2 : Max::identity<float>();
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float top = fmaxf(s[n][e], s[n][e + 2]);
#pragma unroll
        for (int lanes = 4; lanes < kWarp; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
        top = fmaxf(top, maximum[n][e]);
        alpha[n][e] = exp2_approx(maximum[n][e] - top);
        rescale |= top != maximum[n][e];
        maximum[n][e] = top;
        s[n][e] = exp2_approx(s[n][e] - top);
        s[n][e + 2] = exp2_approx(s[n][e + 2] - top);
        sum[n][e] = sum[n][e] * alpha[n][e] + s[n][e] + s[n][e + 2];
      }
      p[n][0] = movmatrix_trans(pack2<typename D::T>(s[n][0], s[n][1]));
      p[n][1] = movmatrix_trans(pack2<typename D::T>(s[n][2], s[n][3]));
    }
    if (!__any_sync(0xffffffffu, rescale)) return;
#pragma unroll
    for (int m = 0; m < kSteps; ++m)
#pragma unroll
      for (int n = 0; n < D::kHeadTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] *= alpha[n][e % 2];
  }
};

// One page: `tokens` of this warp's 16 rows from `row0` are in the context.
template <class D>
TESSERA_DEVICE void attend_page(WarpState<D>& state, const typename D::KvRing& ring, RingPosition<D::kStages>& position,
                                int row0, int tokens, float scale_log2) {
  using P = typename D::Page;
  using T = typename D::T;
  constexpr int kSteps = WarpState<D>::kSteps;
  const int row = row0 + lane_id() % 8, matrix = lane_id() / 8;
  u32 p[D::kHeadTiles][2];
  const u32 k_part = ring.wait(position);
  if (tokens > 0) {
    float s[D::kHeadTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      u32 a[4];
      ldmatrix(a, k_part + P::chunk_offset(row + (matrix % 2) * 8, 2 * k + matrix / 2));
#pragma unroll
      for (int n = 0; n < D::kHeadTiles; ++n) mma_16816<T>(s[n], a, state.q[n][k]);
    }
    state.softmax(s, p, tokens, scale_log2);
  }
  ring.release(position);
  const u32 v_part = ring.wait(position);
  if (tokens > 0) {
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
      u32 a[4];
      ldmatrix_trans(a, v_part + P::chunk_offset(row + (matrix / 2) * 8, 2 * m + matrix % 2));
#pragma unroll
      for (int n = 0; n < D::kHeadTiles; ++n) mma_16816<T>(state.o[m][n], a, p[n]);
    }
  }
  ring.release(position);
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

template <class D>
TESSERA_DEVICE void consume(const DecodeArgs& args, const typename D::T* q, typename D::T* out,
                            const typename D::KvRing& ring, float* merge, Segment<typename D::Page> at, int unit,
                            int left, int units, int pieces, int* last_arrived) {
  using P = typename D::Page;
  const int warp = warp_id(), begin = unit;
  RingPosition<D::kStages> position;
  WarpState<D> state;
  while (left > 0) {
    const int count = at.count(left);
    const i64 row = (static_cast<i64>(args.batch.cu_seqlens[at.seq]) * args.kv_heads + at.head) * args.group * P::kDim;
    state.start(q + row, args.group);
    for (int page = at.page; page < at.page + count; ++page) {
      const int tokens = at.context - page * P::kTokens - warp * 16;
      attend_page<D>(state, ring, position, warp * 16, tokens, args.scale_log2);
    }
    publish<D>(state, merge, warp);
    const int first = unit - at.page;
    const Split split = {piece_of(first, units, pieces), piece_of(first + at.pages() - 1, units, pieces),
                         first == piece_start(piece_of(first, units, pieces), units, pieces)};
    const bool whole = split.first == split.last;
    write_merged<D>(args, merge, out + row, whole ? -1 : 2 * static_cast<int>(blockIdx.x) + (unit != begin));
    if (!whole) {
      named_barrier_sync(1, D::kConsumers);
      if (threadIdx.x == 0) {
        const u32 others = split.last - split.first;
        const bool last = add_acquire_release(args.arrived + split.first) == others;
        if (last) args.arrived[split.first] = 0;
        *last_arrived = last;
      }
      named_barrier_sync(1, D::kConsumers);
      if (*last_arrived) combine<D>(args, split, out + row);
    }
    named_barrier_sync(1, D::kConsumers);  // the merge buffer is free again
    unit += count;
    left -= count;
    at.next(args);
  }
}

// q, out [tokens, kv_heads * group, D]; sequences that bring one query token are served, the others left alone; one
// with an empty context (padding) gets zeros. Grid: any number of blocks that `partials` and `arrived` have room for.
template <class D>
__global__ void __launch_bounds__(D::kThreads)
    paged_decode(const typename D::T* q, const char* cache, const i32* block_tables, const i32* cu_seqlens,
                 const i32* context_lens, typename D::T* out, float* partials, u32* arrived, int seqs, int kv_heads,
                 int group, int table_stride, float scale_log2) {
  using P = typename D::Page;
  extern __shared__ __align__(128) char smem[];
  __shared__ i32 scratch[D::kThreads / kWarp];
  __shared__ Share share;
  __shared__ int last_arrived;
  const typename D::KvRing ring{smem_address(smem)};
  float* merge = reinterpret_cast<float*>(smem + D::KvRing::kBytes);
  if (threadIdx.x == 0) ring.init(D::kWarps);
  await_predecessor();

  const DecodeArgs args = {{cu_seqlens, context_lens, seqs}, block_tables, table_stride, kv_heads, group,
                           scale_log2, partials, arrived};
  const auto weight = [&](int s) { return div_up(decode_context(args.batch, s), P::kTokens) * kv_heads; };
  for (int s = blockIdx.x; s < seqs; s += gridDim.x) {
    if (args.batch.query_len(s) != 1 || context_lens[s] > 0) continue;
    const int width = kv_heads * group * P::kDim;
    u32* to = reinterpret_cast<u32*>(out + static_cast<i64>(cu_seqlens[s]) * width);
    for (int i = threadIdx.x; i < width / 2; i += D::kThreads) to[i] = 0;
  }
  const auto pieces_of = [&](int units) { return min(static_cast<int>(gridDim.x), units); };
  const int units = line_of<D::kThreads>(weight, seqs, scratch).locate(
      [&](int all) { return piece_start(blockIdx.x, max(all, 1), max(pieces_of(all), 1)); }, &share);
  const int pieces = pieces_of(units);
  if (blockIdx.x >= pieces) return;
  const int begin = piece_start(blockIdx.x, units, pieces), end = piece_start(blockIdx.x + 1, units, pieces);
  const Share start = share;
  const int context = context_lens[start.seq], pages = div_up(context, P::kTokens);
  const Segment<P> at = {start.seq, start.offset / pages, start.offset % pages, context};
  if (warp_id() == D::kWarps) {
    produce<D>(args, cache, ring, at, end - begin);
  } else {
    consume<D>(args, q, out, ring, merge, at, begin, end - begin, units, pieces, &last_arrived);
  }
}

}  // namespace tessera
