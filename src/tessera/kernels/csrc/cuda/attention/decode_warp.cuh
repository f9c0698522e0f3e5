// What one warp of paged_decode does with the pages it is given, and the sizes all of that kernel shares.
#pragma once
#include "attention/batch.cuh"
#include "attention/page16.cuh"
#include "attention/ring.cuh"
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

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
  static constexpr int kPartsAhead = kHeadTiles == 1 ? 20 : 12;  // of a split pair, on their way to a warp at once
  using KvRing = Ring<kStages, P::kPartBytes, P::kPanelBytes, true>;
  static constexpr int kMergeFloats = kWarps * kHeads * (kRow + 2);
  static constexpr int kSmem = KvRing::kBytes + kMergeFloats * 4;
};

struct DecodeArgs {
  EarlyBatch batch;
  const i32* block_tables;
  int table_stride, kv_heads, group;
  float scale_log2;  // softmax scale * log2(e)
  float* partials;   // [2 grid][kHeads][D], then [2 grid][kHeads] of (max, sum)
  u32* arrived;      // [grid], zero between launches
};

// State of one warp: for heads 2t, 2t + 1 of each tile the running maximum (log2) and this lane's part of the sum;
// output as mma leaves it: rows d = 16 m + g, + 8, columns heads 2t, 2t + 1.
template <class D>
struct WarpState {
  static constexpr int kSteps = D::Page::kDim / 16;
  u32 q[D::kHeadTiles][kSteps][2];
  float o[kSteps][D::kHeadTiles][4];
  float maximum[D::kHeadTiles][2];
  float sum[D::kHeadTiles][2];

  // Its loads may still be on their way when this returns.
  TESSERA_DEVICE void load_query(const typename D::T* query, int group) {
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
    }
  }

  TESSERA_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < D::kHeadTiles; ++n) {
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

}  // namespace tessera
