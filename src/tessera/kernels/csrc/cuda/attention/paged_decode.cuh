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
  int token;  // the sequence's row of queries
  TESSERA_DEVICE int pages() const { return div_up(context, P::kTokens); }
  TESSERA_DEVICE int count(int left) const { return min(left, pages() - page); }
  // To the start of the next pair.
  TESSERA_DEVICE void next(const DecodeArgs& args);
};

// Tokens in the cache of a sequence that this kernel serves: one that brings a single query token.
TESSERA_DEVICE int decode_context(const EarlyBatch& batch, int s) {
  const int tokens = batch.query_len(s), context = batch.context_lens[s];  // both at once
  return tokens == 1 ? context : 0;
}

template <class P>
TESSERA_DEVICE void Segment<P>::next(const DecodeArgs& args) {
  page = 0;
  if (++head < args.kv_heads) return;
  head = 0;
  do ++seq;
  while (seq < args.batch.seqs && (context = decode_context(args.batch, seq)) == 0);
  token = args.batch.cu_seqlens[seq];
}

// Asks for up to a line a thread of the grid in L2, so that what a page's address depends on is near. It reads
// nothing: another grid's writes meet the line in L2, so this may come before the wait for that grid.
TESSERA_DEVICE void prefetch(const i32* from, i64 count) {
  constexpr int kLine = 128 / sizeof(i32);
  const i64 at = kLine * (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at < count) prefetch_l2(from + at);
}

// The pages of a sequence before its last hold what earlier steps wrote. So they are on their way before the kernel is
// waited for that appends this step's token: as many as the ring takes, and as many again as far as L2.
template <class D>
TESSERA_DEVICE void produce(const DecodeArgs& args, const char* cache, const typename D::KvRing& ring,
                            Segment<typename D::Page> at, int left) {
  using P = typename D::Page;
  constexpr int kRingPages = D::kStages / 2;
  RingPosition<D::kStages> position;
  bool waited = false;
  while (left > 0) {
    const int first = at.page, count = at.count(left), pages = at.pages();
    const volatile i32* table = args.block_tables + static_cast<i64>(at.seq) * args.table_stride;
    int ids = 0;
    for (int i = 0; i < count; ++i) {
      if (i % kWarp == 0) ids = i + lane_id() < count ? table[first + i + lane_id()] : 0;
      const i64 page = __shfl_sync(0xffffffffu, ids, i % kWarp);
      const int rows = min(P::kTokens, at.context - (first + i) * P::kTokens);
      if (!waited && first + i == pages - 1) {
        await_predecessor();
        waited = true;
      }
      const char* slice = cache + P::slice_offset(page, at.head, args.kv_heads);
      // Rows past the context may hold anything, NaN too: scores of K are masked, but 0 * V must be 0.
      ring.fill(position, slice, rows * P::kRowBytes, rows * P::kRowBytes);
      ring.fill(position, slice + P::kPartBytes, rows * P::kRowBytes, P::kPanelBytes);
      if (kBulkCopy && !waited && i == kRingPages - 1 && i < lane_id() && lane_id() < min(count, 2 * kRingPages))
        bulk_prefetch(cache + P::slice_offset(ids, at.head, args.kv_heads), P::kSliceBytes);
    }
    left -= count;
    at.next(args);
  }
  if (!waited) await_predecessor();
}

template <class D>
TESSERA_DEVICE void consume(const DecodeArgs& args, const typename D::T* q, typename D::T* out,
                            const typename D::KvRing& ring, float* merge, Segment<typename D::Page> at, const Cut& cut,
                            int* last_arrived) {
  using P = typename D::Page;
  const int begin = cut.start(blockIdx.x), end = cut.start(blockIdx.x + 1);
  const auto row_of = [&](const Segment<P>& s) {
    return (static_cast<i64>(s.token) * args.kv_heads + s.head) * args.group * P::kDim;
  };
  RingPosition<D::kStages> position;
  WarpState<D> state;
  state.load_query(q + row_of(at), args.group);
  for (int unit = begin; unit < end;) {
    const int first = unit - at.page, pages = at.pages(), count = at.count(end - unit);
    const i64 row = row_of(at);
    state.clear();
    for (int page = at.page; page < at.page + count; ++page) {
      const int tokens = at.context - page * P::kTokens - warp_id() * 16;
      attend_page<D>(state, ring, position, warp_id() * 16, tokens, args.scale_log2);
    }
    at.next(args);
    if (unit + count < end) state.load_query(q + row_of(at), args.group);  // comes while this pair is put together
    const Split split = Split::of(cut, first, pages);
    // A block that comes after all the others need not write its part for anyone, nor be counted.
    const u32 others = split.last - split.first;
    u32* arrived = args.arrived + split.first;
    if (threadIdx.x == 0) *last_arrived = others > 0 && all_arrived(arrived, others);
    publish<D>(state, merge, warp_id());
    const bool here = *last_arrived;
    if (others == 0) {
      merge_warps<D>(merge, args.group, [&](int head, int d, float value, float, float sum) {
        out[row + head * P::kDim + d] = from_float<typename D::T>(value / sum);
      });
    } else {
      const int slot = 2 * static_cast<int>(blockIdx.x) + (unit != begin);
      write_part<D>(merge, args.group, here ? part_here<D>(merge) : part_of<D>(args, slot));
      named_barrier_sync(1, D::kConsumers);
      if (threadIdx.x == 0) {
        const bool last = here || add_acquire_release(arrived) == others;
        if (last) *arrived = 0;
        *last_arrived = last;
      }
      named_barrier_sync(1, D::kConsumers);
      if (*last_arrived) combine<D>(args, split, merge, here, out + row);
    }
    named_barrier_sync(1, D::kConsumers);  // the merge buffer is free again
    unit += count;
  }
}

// Zeros for sequences with an empty context. The consumer threads of a block.
template <class D>
TESSERA_DEVICE void clear_padding(const EarlyBatch& batch, int width, typename D::T* out) {
  for (int s = blockIdx.x; s < batch.seqs; s += gridDim.x) {
    if (batch.query_len(s) != 1 || batch.context_lens[s] > 0) continue;
    u32* to = reinterpret_cast<u32*>(out + static_cast<i64>(batch.cu_seqlens[s]) * width);
    for (int i = threadIdx.x; i < width / 2; i += D::kConsumers) to[i] = 0;
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
  prefetch(cu_seqlens, seqs + 1);
  prefetch(context_lens, seqs);
  prefetch(block_tables, static_cast<i64>(seqs) * table_stride);

  const DecodeArgs args = {{cu_seqlens, context_lens, seqs}, block_tables, table_stride, kv_heads, group,
                           scale_log2, partials, arrived};
  const auto weight = [&](int s) { return div_up(decode_context(args.batch, s), P::kTokens) * kv_heads; };
  Cut cut;
  const auto first_unit = [&](int all) {
    cut = Cut::of(all, gridDim.x);
    return cut.start(blockIdx.x);
  };
  const int units = line_of<D::kThreads>(weight, seqs, scratch).locate(first_unit, &share);
  Segment<P> at = {};
  const bool works = blockIdx.x < min(cut.pieces, units);
  if (works) {
    const int context = args.batch.context_lens[share.seq], pages = div_up(context, P::kTokens);
    at = {share.seq, share.offset / pages, share.offset % pages, context, args.batch.cu_seqlens[share.seq]};
    if (warp_id() == D::kWarps) {
      produce<D>(args, cache, ring, at, cut.start(blockIdx.x + 1) - cut.start(blockIdx.x));
      return;
    }
  }
  await_predecessor();
  if (threadIdx.x < D::kConsumers) clear_padding<D>(args.batch, kv_heads * group * P::kDim, out);
  if (works) consume<D>(args, q, out, ring, merge, at, cut, &last_arrived);
}

}  // namespace tessera
