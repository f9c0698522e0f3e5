// paged_prefill on wgmma: each of two warpgroups holds 64 rows, K and V are read from the ring by the tensor cores.
// The next page's scores are computed while this page's values are added up, and softmax runs beside both, as in
// FlashAttention-3 (Shah et al. 2024, section 3.2).
#pragma once
#include "attention/prefill_rows.cuh"
#include "common/sync.cuh"
#include "common/wgmma.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

// The same registers as one array: tile n's four accumulators are 4 n ... 4 n + 3.
template <int kTiles>
TESSERA_DEVICE float (&flat(float (&x)[kTiles][4]))[4 * kTiles] {
  return reinterpret_cast<float (&)[4 * kTiles]>(x);
}

// s = q K^T of the page in `k_part`, not waited for.
template <class F>
TESSERA_DEVICE void issue_scores(RowState<F>& state, float (&s)[F::kKeyTiles][4], u32 k_part) {
  using P = typename F::Page;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < F::kSteps; ++k) {
    const u64 keys = wgmma_descriptor(k_part + k / 4 * P::kPanelBytes + k % 4 * 32);
    Wgmma<typename F::T, P::kTokens>::rs(flat(s), state.q[k], keys, k > 0);
  }
  wgmma_commit();
}

// o += p V of the page in `v_part`, not waited for.
template <class F>
TESSERA_DEVICE void issue_values(RowState<F>& state, u32 (&p)[F::Page::kTokens / 16][4], u32 v_part) {
  using P = typename F::Page;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < P::kTokens / 16; ++k) {
    const u64 values = wgmma_descriptor(v_part + k * 16 * P::kRowBytes, 8 * P::kRowBytes, P::kPanelBytes);
    Wgmma<typename F::T, P::kDim>::template rs<1>(flat(state.o), p[k], values);
  }
  wgmma_commit();
}

template <class F>
TESSERA_DEVICE void attend(RowState<F>& state, const typename F::KvRing& ring, RingPosition<F::kStages>& position,
                           int pages, float scale_log2) {
  using P = typename F::Page;
  constexpr int kKeySteps = P::kTokens / 16;
  float s[F::kKeyTiles][4];
  float alpha[2];
  u32 p[kKeySteps][4];
  issue_scores<F>(state, s, ring.wait(position));
  wgmma_wait<0>();
  keep(flat(s));
  ring.release(position);
  state.weigh(s, alpha, 0, scale_log2);  // the output is zero still
#pragma unroll
  for (int k = 0; k < kKeySteps; ++k) pack_keys<typename F::T>(p[k], s, k);
  for (int page = 1; page < pages; ++page) {
    // The ring holds V of the last page, then K of this one.
    const u32 v_part = ring.wait(position);
    RingPosition<F::kStages> next = position;
    next.step();
    const u32 k_part = ring.wait(next);
    issue_scores<F>(state, s, k_part);
    issue_values<F>(state, p, v_part);
    wgmma_wait<1>();
    keep(flat(s));
    const bool same = state.weigh(s, alpha, page * P::kTokens, scale_log2);
    wgmma_wait<0>();
    keep(flat(state.o));
    ring.release(position);
    ring.release(position);
    if (!same) state.rescale(alpha);
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) pack_keys<typename F::T>(p[k], s, k);
  }
  issue_values<F>(state, p, ring.wait(position));
  wgmma_wait<0>();
  keep(flat(state.o));
  ring.release(position);
}

// As `paged_prefill`. F has a warpgroup of producer threads, whose registers the others take over.
template <class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    paged_prefill_wgmma(const typename F::T* q, const char* cache, const i32* block_tables, const i32* cu_seqlens,
                        const i32* context_lens, typename F::T* out, int seqs, int kv_heads, int group,
                        int table_stride, int tiles_per_block, float scale_log2) {
  extern __shared__ __align__(1024) char smem[];
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
  if (warp >= F::kWarps) {
    registers_shrink<24>();
    if (warp == F::kWarps)
      hand.each(args, [&](const Tile& tile) { produce<F>(args, cache, ring, position, tile); });
  } else {
    registers_grow<240>();
    hand.each(args, [&](const Tile& tile) {
      const int row0 = tile.first_row + warp * 16;
      RowState<F> state;
      state.start(args, tile, row0, q);
      attend<F>(state, ring, position, tile.pages, scale_log2);
      state.store(args, tile, row0, out);
    });
  }
}

}  // namespace tessera
