// Causal attention of many query tokens a sequence over a paged cache, this step's tokens included: flash attention
// (Dao 2023, algorithm 1) that reads K and V from their pages. Rows of a tile are (query token, query head) pairs of
// one KV head, so heads that share a KV head share its pages.
//
// A producer warp streams pages through a ring; each of eight warps holds 16 rows: queries, scores and output stay in
// its registers, and the scores of the first product are already the A fragments of the second.
#pragma once
#include "attention/batch.cuh"
#include "attention/page16.cuh"
#include "attention/ring.cuh"
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

template <class P, int kStages_>
struct Prefill {
  using Page = P;
  using T = typename P::Element;
  static constexpr int kStages = kStages_;
  static constexpr int kWarps = 8;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kThreads = (kWarps + 1) * kWarp;
  static constexpr int kSteps = P::kDim / 16;
  static constexpr int kKeyTiles = P::kTokens / 8;
  static constexpr int kDimTiles = P::kDim / 8;
  using KvRing = Ring<kStages, P::kPartBytes>;
  static constexpr int kSmem = KvRing::kBytes;
};

struct PrefillArgs {
  Batch batch;
  const i32* block_tables;
  int table_stride, kv_heads, group;
  float scale_log2;  // softmax scale * log2(e)
};

// One block's work: rows first_row .. of the (query token, head) pairs of `seq` and KV head `head`.
struct Tile {
  int seq, head, first_row, rows;  // rows: of the whole sequence
  int past;                        // tokens in the cache before this step's
  int pages;                       // that the last row of the tile sees
};

// Query tokens of a sequence that this kernel serves: those that bring more than one.
TESSERA_DEVICE int prefill_tokens(const Batch& batch, int s) {
  const int n = batch.query_len(s);
  return n == 1 ? 0 : n;
}

template <class F>
TESSERA_DEVICE void produce(const PrefillArgs& args, const char* cache, const typename F::KvRing& ring,
                            const Tile& tile) {
  using P = typename F::Page;
  const i32* table = args.block_tables + static_cast<i64>(tile.seq) * args.table_stride;
  const int context = args.batch.context_lens[tile.seq];
  RingPosition<F::kStages> position;
  int ids = 0;
  for (int i = 0; i < tile.pages; ++i) {
    if (i % kWarp == 0) ids = i + lane_id() < tile.pages ? table[i + lane_id()] : 0;
    const i64 page = __shfl_sync(0xffffffffu, ids, i % kWarp);
    const int rows = min(P::kTokens, context - i * P::kTokens);
    const char* slice = cache + P::slice_offset(page, tile.head, args.kv_heads);
    // Rows past the context may hold anything, NaN too: scores of K are masked, but 0 * V must be 0.
    ring.fill(position, slice, rows * P::kRowBytes, rows * P::kRowBytes);
    ring.fill(position, slice + P::kPartBytes, rows * P::kRowBytes, P::kPartBytes);
  }
}

// A warp's 16 rows: lane (g, t) has columns 2t, 2t + 1 of every 8 of rows g and g + 8 (index r = 0, 1).
template <class F>
struct RowState {
  u32 q[F::kSteps][4];
  float o[F::kDimTiles][4];
  float maximum[2], sum[2];
  int position[2];  // last token that a row sees

  TESSERA_DEVICE i64 row_offset(const PrefillArgs& args, const Tile& tile, int row) const {
    const i64 token = args.batch.cu_seqlens[tile.seq] + row / args.group;
    return ((token * args.kv_heads + tile.head) * args.group + row % args.group) * F::Page::kDim;
  }

  TESSERA_DEVICE void start(const PrefillArgs& args, const Tile& tile, int row0, const typename F::T* query) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(row0 + g + 8 * r, tile.rows - 1);  // rows past the end repeat the last and are not stored
      position[r] = tile.past + row / args.group;
      maximum[r] = -1e30f;
      sum[r] = 0;
      const u32* from = reinterpret_cast<const u32*>(query + row_offset(args, tile, row));
#pragma unroll
      for (int k = 0; k < F::kSteps; ++k) {
        q[k][r] = from[8 * k + t];
        q[k][r + 2] = from[8 * k + t + 4];
      }
    }
#pragma unroll
    for (int n = 0; n < F::kDimTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = 0;
  }

  TESSERA_DEVICE void store(const PrefillArgs& args, const Tile& tile, int row0, typename F::T* out) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float inverse = 1.0f / warp_reduce<4>(sum[r], Sum{});
      const int row = row0 + g + 8 * r;
      if (row >= tile.rows) continue;
      u32* to = reinterpret_cast<u32*>(out + row_offset(args, tile, row));
#pragma unroll
      for (int n = 0; n < F::kDimTiles; ++n)
        to[4 * n + t] = pack2<typename F::T>(o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse);
    }
  }

  // Scores of one page to probabilities; `first` is the page's first token.
  TESSERA_DEVICE void softmax(float (&s)[F::kKeyTiles][4], int first, float scale_log2) {
    const int t = lane_id() % 4;
    if (__any_sync(0xffffffffu, first + F::Page::kTokens - 1 > position[0])) {  // position[0] <= position[1]
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < F::kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (first + 8 * n + 2 * t + e > position[r]) s[n][2 * r + e] = Max::identity<float>();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = maximum[r];
#pragma unroll
      for (int n = 0; n < F::kKeyTiles; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]) * scale_log2);
      top = warp_reduce<4>(top, Max{});
      const float alpha = exp2_approx(maximum[r] - top);
      maximum[r] = top;
      sum[r] *= alpha;
#pragma unroll
      for (int n = 0; n < F::kKeyTiles; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -top));
          sum[r] += s[n][e];
        }
#pragma unroll
      for (int n = 0; n < F::kDimTiles; ++n) {
        o[n][2 * r] *= alpha;
        o[n][2 * r + 1] *= alpha;
      }
    }
  }
};

template <class F>
TESSERA_DEVICE void attend_page(RowState<F>& state, const typename F::KvRing& ring, RingPosition<F::kStages>& position,
                                int first, float scale_log2) {
  using P = typename F::Page;
  using T = typename F::T;
  const int line = lane_id() % 8, matrix = lane_id() / 8;
  float s[F::kKeyTiles][4] = {};
  const u32 k_part = ring.wait(position);
#pragma unroll
  for (int k = 0; k < F::kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < F::kKeyTiles; n += 2) {  // keys 8n .. 8n + 15: {n, n + 1} x {lower, upper} half of the step
      u32 b[4];
      ldmatrix(b, k_part + P::chunk_offset(8 * n + line + (matrix / 2) * 8, 2 * k + matrix % 2));
      mma_16816<T>(s[n], state.q[k], {b[0], b[1]});
      mma_16816<T>(s[n + 1], state.q[k], {b[2], b[3]});
    }
  }
  ring.release(position);
  state.softmax(s, first, scale_log2);
  const u32 v_part = ring.wait(position);
#pragma unroll
  for (int k = 0; k < P::kTokens / 16; ++k) {
    const u32 p[4] = {pack2<T>(s[2 * k][0], s[2 * k][1]), pack2<T>(s[2 * k][2], s[2 * k][3]),
                      pack2<T>(s[2 * k + 1][0], s[2 * k + 1][1]), pack2<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < F::kDimTiles; n += 2) {
      u32 b[4];
      ldmatrix_trans(b, v_part + P::chunk_offset(16 * k + line + (matrix % 2) * 8, n + matrix / 2));
      mma_16816<T>(state.o[n], p, {b[0], b[1]});
      mma_16816<T>(state.o[n + 1], p, {b[2], b[3]});
    }
  }
  ring.release(position);
}

// q, out [tokens, kv_heads * group, D]; sequences that bring a single query token are left alone. Grid: at least as
// many blocks as tiles; the rest end at once. The last tiles of a sequence, which see most, come first.
template <class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    paged_prefill(const typename F::T* q, const char* cache, const i32* block_tables, const i32* cu_seqlens,
                  const i32* context_lens, typename F::T* out, int seqs, int kv_heads, int group, int table_stride,
                  float scale_log2) {
  extern __shared__ __align__(128) char smem[];
  __shared__ i32 scratch[F::kThreads / kWarp];
  __shared__ Share share;
  const typename F::KvRing ring{smem_address(smem)};
  if (threadIdx.x == 0) ring.init(F::kWarps);
  await_predecessor();

  const PrefillArgs args = {{cu_seqlens, context_lens, seqs}, block_tables, table_stride, kv_heads, group, scale_log2};
  const auto tiles = [&](int s) { return div_up(prefill_tokens(args.batch, s) * group, F::kRows); };
  const auto weight = [&](int s) { return tiles(s) * kv_heads; };
  const int unit = blockIdx.x;
  if (unit >= line_of<F::kThreads>(weight, seqs, scratch).locate([=](int) { return unit; }, &share)) return;
  const Share at = share;
  const int tokens = args.batch.query_len(at.seq);
  Tile tile;
  tile.seq = at.seq;
  tile.head = at.offset % kv_heads;
  tile.rows = tokens * group;
  tile.first_row = (tiles(at.seq) - 1 - at.offset / kv_heads) * F::kRows;
  tile.past = context_lens[at.seq] - tokens;
  const int last_row = min(tile.first_row + F::kRows, tile.rows) - 1;
  tile.pages = (tile.past + last_row / group) / F::Page::kTokens + 1;

  const int warp = warp_id();
  if (warp == F::kWarps) {
    produce<F>(args, cache, ring, tile);
  } else {
    const int row0 = tile.first_row + warp * 16;
    RingPosition<F::kStages> position;
    RowState<F> state;
    state.start(args, tile, row0, q);
    for (int page = 0; page < tile.pages; ++page)
      attend_page<F>(state, ring, position, page * F::Page::kTokens, scale_log2);
    state.store(args, tile, row0, out);
  }
}

}  // namespace tessera
