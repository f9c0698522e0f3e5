// What prefill kernels share: tiles, the pages they stream, and the rows of queries that a warp holds.
#pragma once
#include "attention/batch.cuh"
#include "attention/page16.cuh"
#include "attention/ring.cuh"
#include "common/reduce.cuh"

namespace tessera {

// kProducerThreads: a warp, or a warpgroup where registers are moved between warpgroups.
template <class P, int kStages_, int kProducerThreads = kWarp>
struct Prefill {
  using Page = P;
  using T = typename P::Element;
  static constexpr int kStages = kStages_;
  static constexpr int kWarps = 8;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kThreads = kWarps * kWarp + kProducerThreads;
  static constexpr int kSteps = P::kDim / 16;
  static constexpr int kKeyTiles = P::kTokens / 8;
  static constexpr int kDimTiles = P::kDim / 8;
  using KvRing = Ring<kStages, P::kPartBytes, P::kPanelBytes>;
  static constexpr int kSmem = KvRing::kBytes;
};

struct PrefillArgs {
  Batch batch;
  const i32* block_tables;
  int table_stride, kv_heads, group, tiles_per_block;
  float scale_log2;  // softmax scale * log2(e)
};

// Rows first_row .. of the (query token, head) pairs of `seq` and KV head `head`.
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
                            RingPosition<F::kStages>& position, const Tile& tile) {
  using P = typename F::Page;
  const i32* table = args.block_tables + static_cast<i64>(tile.seq) * args.table_stride;
  const int context = args.batch.context_lens[tile.seq];
  int ids = 0;
  for (int i = 0; i < tile.pages; ++i) {
    if (i % kWarp == 0) ids = i + lane_id() < tile.pages ? table[i + lane_id()] : 0;
    const i64 page = __shfl_sync(0xffffffffu, ids, i % kWarp);
    const int rows = min(P::kTokens, context - i * P::kTokens);
    const char* slice = cache + P::slice_offset(page, tile.head, args.kv_heads);
    // Rows past the context may hold anything, NaN too: scores of K are masked, but 0 * V must be 0.
    ring.fill(position, slice, rows * P::kRowBytes, rows * P::kRowBytes);
    ring.fill(position, slice + P::kPartBytes, rows * P::kRowBytes, P::kPanelBytes);
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
    uint4 chunks[2][F::kSteps / 2];  // of 8 elements: lane t has number t of every four
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows past the end repeat the last and are not stored.
      const int row = min(row0 + lane_id() / 4 + 8 * r, tile.rows - 1);
      position[r] = tile.past + row / args.group;
      maximum[r] = -1e30f;
      sum[r] = 0;
      const uint4* from = reinterpret_cast<const uint4*>(query + row_offset(args, tile, row));
#pragma unroll
      for (int j = 0; j < F::kSteps / 2; ++j) chunks[r][j] = from[4 * j + lane_id() % 4];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < F::kSteps / 2; ++j) {
        const uint4 chunk = chunks[r][j];
        u32 x[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        quad_transpose(x);  // to word t of each of the four, as A fragments want it
        q[2 * j][r] = x[0], q[2 * j][r + 2] = x[1], q[2 * j + 1][r] = x[2], q[2 * j + 1][r + 2] = x[3];
      }
#pragma unroll
    for (int n = 0; n < F::kDimTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = 0;
  }

  TESSERA_DEVICE void store(const PrefillArgs& args, const Tile& tile, int row0, typename F::T* out) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float inverse = 1.0f / warp_reduce<4>(sum[r], Sum{});
      const int row = row0 + lane_id() / 4 + 8 * r;
      uint4* to = reinterpret_cast<uint4*>(out + row_offset(args, tile, row));
#pragma unroll
      for (int n = 0; n < F::kDimTiles; n += 4) {
        u32 x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i] = pack2<typename F::T>(o[n + i][2 * r] * inverse, o[n + i][2 * r + 1] * inverse);
        quad_transpose(x);
        if (row < tile.rows) to[n + lane_id() % 4] = {x[0], x[1], x[2], x[3]};
      }
    }
  }

  // Scores of one page to probabilities; `first` is the page's first token. What the output so far must be multiplied
  // by goes to `alpha`; returns whether that is 1 for the whole warp.
  TESSERA_DEVICE bool weigh(float (&s)[F::kKeyTiles][4], float (&alpha)[2], int first, float scale_log2) {
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
    bool same = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = s[0][2 * r];
#pragma unroll
      for (int n = 0; n < F::kKeyTiles; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(warp_reduce<4>(top, Max{}) * scale_log2, maximum[r]);
      alpha[r] = exp2_approx(maximum[r] - top);
      same &= top == maximum[r];
      maximum[r] = top;
      sum[r] *= alpha[r];
#pragma unroll
      for (int n = 0; n < F::kKeyTiles; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -top));
          sum[r] += s[n][e];
        }
    }
    return __all_sync(0xffffffffu, same);
  }

  TESSERA_DEVICE void rescale(const float (&alpha)[2]) {
#pragma unroll
    for (int n = 0; n < F::kDimTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] *= alpha[e / 2];
  }
};

// Probabilities of keys 16 k ... 16 k + 15 as the A fragment of the second product.
template <class T, int kTiles>
TESSERA_DEVICE void pack_keys(u32 (&p)[4], const float (&s)[kTiles][4], int k) {
  p[0] = pack2<T>(s[2 * k][0], s[2 * k][1]);
  p[1] = pack2<T>(s[2 * k][2], s[2 * k][3]);
  p[2] = pack2<T>(s[2 * k + 1][0], s[2 * k + 1][1]);
  p[3] = pack2<T>(s[2 * k + 1][2], s[2 * k + 1][3]);
}

// The tiles of one block: tiles_per_block of them, of one sequence and KV head, so that finding them and filling the
// ring is paid once. Row tiles are dealt out as cards are, last tile first and to and fro, because later tiles see
// more: blocks so take about equally long.
template <class F>
struct Hand {
  int seq, head, block, blocks, tiles;

  // Calls f(tile) for each.
  template <class Play>
  TESSERA_DEVICE void each(const PrefillArgs& args, Play play) const {
    const int tokens = args.batch.query_len(seq), past = args.batch.context_lens[seq] - tokens;
    for (int round = 0; round < args.tiles_per_block; ++round) {
      const int index = tiles - 1 - (round * blocks + (round % 2 ? blocks - 1 - block : block));
      if (index < 0) continue;
      Tile tile = {seq, head, index * F::kRows, tokens * args.group, past, 0};
      const int last_row = min(tile.first_row + F::kRows, tile.rows) - 1;
      tile.pages = (past + last_row / args.group) / F::Page::kTokens + 1;
      play(tile);
    }
  }
};

// The block's tiles, for every thread; false where the grid has more blocks than there is work for. `scratch`:
// kThreads / 32 ints of shared memory; `share`: one Share.
template <class F>
TESSERA_DEVICE bool deal(const PrefillArgs& args, i32* scratch, Share* share, Hand<F>* hand) {
  const auto tiles = [&](int s) { return div_up(prefill_tokens(args.batch, s) * args.group, F::kRows); };
  const auto blocks = [&](int s) { return div_up(tiles(s), args.tiles_per_block); };
  const auto weight = [&](int s) { return blocks(s) * args.kv_heads; };
  const int unit = blockIdx.x;
  if (unit >= line_of<F::kThreads>(weight, args.batch.seqs, scratch).locate([=](int) { return unit; }, share))
    return false;
  const int seq = share->seq;
  *hand = {seq, share->offset % args.kv_heads, share->offset / args.kv_heads, blocks(seq), tiles(seq)};
  return true;
}

}  // namespace tessera
