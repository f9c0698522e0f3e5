// Attention of one query token a sequence over a paged cache: split-KV flash decoding (Dao et al. 2023) with the
// online softmax of Milakov and Gimelshein 2018. Keys lie on the M axis of mma and the query heads of a KV head on
// N, so heads that share a KV head share every byte and every instruction.
//
// The pages of all (sequence, KV head) pairs form one line of units, cut into equal pieces, one a block: blocks end
// together whatever the lengths. A pair cut by a piece's end is put together by the last block that has a part of
// it. In a block a producer warp streams pages through a ring while each of four warps takes 16 of a page's tokens.
#pragma once
#include "attention/decode_split.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

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
      ring.fill(position, slice + P::kPartBytes, rows * P::kRowBytes, P::kPanelBytes);
    }
    left -= count;
    at.next(args);
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
__global__ void __launch_bounds__(D::kThreads, 2)
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
  const auto pieces_of = [&](int units) { return min(static_cast<int>(gridDim.x), units); };
  const int units = line_of<D::kThreads>(weight, seqs, scratch).locate(
      [&](int all) { return piece_start(blockIdx.x, max(all, 1), max(pieces_of(all), 1)); }, &share);
  for (int s = blockIdx.x; s < seqs; s += gridDim.x) {
    if (args.batch.query_len(s) != 1 || context_lens[s] > 0) continue;
    const int width = kv_heads * group * P::kDim;
    u32* to = reinterpret_cast<u32*>(out + static_cast<i64>(cu_seqlens[s]) * width);
    for (int i = threadIdx.x; i < width / 2; i += D::kThreads) to[i] = 0;
  }
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
