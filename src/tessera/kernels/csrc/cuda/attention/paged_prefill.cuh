// Causal attention of many query tokens a sequence over a paged cache, this step's tokens included: flash attention
// (Dao 2023, algorithm 1) that reads K and V from their pages. Rows of a tile are (query token, query head) pairs of
// one KV head, so heads that share a KV head share its pages.
//
// A producer warp streams pages through a ring; each of eight warps holds 16 rows: queries, scores and output stay in
// its registers, and the scores of the first product are already the A fragments of the second.
#pragma once
#include "attention/prefill_rows.cuh"
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

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
  float alpha[2];
  if (!state.weigh(s, alpha, first, scale_log2)) state.rescale(alpha);
  const u32 v_part = ring.wait(position);
#pragma unroll
  for (int k = 0; k < P::kTokens / 16; ++k) {
    u32 p[4];
    pack_keys<T>(p, s, k);
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
// many blocks as the batch has hands of tiles; the rest end at once.
template <class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    paged_prefill(const typename F::T* q, const char* cache, const i32* block_tables, const i32* cu_seqlens,
                  const i32* context_lens, typename F::T* out, int seqs, int kv_heads, int group, int table_stride,
                  int tiles_per_block, float scale_log2) {
  extern __shared__ __align__(128) char smem[];
  __shared__ i32 scratch[F::kThreads / kWarp];
  __shared__ Share share;
  const typename F::KvRing ring{smem_address(smem)};
  if (threadIdx.x == 0) ring.init(F::kWarps);
  await_predecessor();

  const PrefillArgs args = {{cu_seqlens, context_lens, seqs}, block_tables, table_stride, kv_heads, group,
                            tiles_per_block, scale_log2};
  Hand<F> hand;
  if (!deal<F>(args, scratch, &share, &hand)) return;

  const int warp = warp_id();
  RingPosition<F::kStages> position;
  if (warp == F::kWarps) {
    hand.each(args, [&](const Tile& tile) { produce<F>(args, cache, ring, position, tile); });
  } else {
    hand.each(args, [&](const Tile& tile) {
      const int row0 = tile.first_row + warp * 16;
      RowState<F> state;
      state.start(args, tile, row0, q);
      for (int page = 0; page < tile.pages; ++page)
        attend_page<F>(state, ring, position, page * F::Page::kTokens, scale_log2);
      state.store(args, tile, row0, out);
    });
  }
}

}  // namespace tessera
