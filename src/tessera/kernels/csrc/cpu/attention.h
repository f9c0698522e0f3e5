// Rotary embedding, append to a paged KV cache, and causal attention over what the cache then holds.
//
// A tile is R query rows of one KV head: (token, head of its group) pairs, so grouped heads and the tokens of
// a prefill chunk share each decoded plane alike, and decode is prefill with one token. Scales and minima of
// 4-bit keys act on scores and those of values on probabilities (q . (s n + m) = s (q . n) + m sum q), so
// decoding a number is one conversion. Every row walks all its pages from the first one in the same order and
// with the same arithmetic, whatever tile it is in: its result does not depend on chunking or batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kv_page.h"
#include "pool.h"
#include "simd.h"

namespace tessera {

enum KvKind : int64_t { kKvF32 = 0, kKvF16 = 1, kKv4 = 2 };

struct Attention {  // mirrored by `AttentionDescriptor` in kernels/cpu/attention.py
  int64_t kind, num_heads, num_kv_heads, head_dim, max_position;
  const float *cos, *sin;  // [max_position][head_dim / 2]

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t row_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

struct Metadata {  // mirrored by `StepDescriptor`
  const int32_t* positions;
  const int64_t* slots;
  const int32_t *cu_seqlens, *context_lens, *block_tables;
  int64_t tokens, sequences, table_width;
};

struct Step : Metadata {
  const float* qkv;
  uint8_t* cache;
  int64_t num_pages;
  float* out;
};

// x turned by its position's angles: pairs (i, i + D/2), each operation rounded, as numerics.rotate does.
inline void rotate(const Attention& a, const float* x, int64_t position, float* out) {
  using namespace simd;
  const int64_t half = a.head_dim / 2;
  const float *cos = a.cos + position * half, *sin = a.sin + position * half;
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const F p = load(x + i), q = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, p * c - q * s);
    store(out + half + i, q * c + p * s);
  }
  for (; i < half; ++i) {
    const float p = x[i], q = x[half + i];
    out[i] = p * cos[i] - q * sin[i];
    out[half + i] = q * cos[i] + p * sin[i];
  }
}

template <class Page>
int64_t slice_bytes(const Attention& a) {
  return 2 * Page::body_bytes(a.head_dim) + (Page::kQuantized ? 4 * kPage * sizeof(uint16_t) : 0);
}

// Tokens that go to one page, consecutive in the step: one thread owns their bytes.
struct Run {
  int64_t first, stop;
};

inline std::vector<Run> page_runs(const Step& s) {
  std::vector<Run> runs;
  for (int64_t t = 0; t < s.tokens; ++t) {
    if (s.slots[t] < 0) continue;
    const bool same = !runs.empty() && runs.back().stop == t && s.slots[t] / kPage == s.slots[t - 1] / kPage;
    if (same) {
      ++runs.back().stop;
    } else {
      runs.push_back({t, t + 1});
    }
  }
  return runs;
}

template <class Page>
void append(const Attention& a, const Step& s, const Run& run, int64_t head) {
  float* key = scratch<4, float>(a.head_dim);
  for (int64_t t = run.first; t < run.stop; ++t) {
    const float* k = s.qkv + t * a.row_width() + (a.num_heads + head) * a.head_dim;
    uint8_t* slice = s.cache + (s.slots[t] / kPage * a.num_kv_heads + head) * slice_bytes<Page>(a);
    const int token = static_cast<int>(s.slots[t] % kPage);
    rotate(a, k, s.positions[t], key);
    Page::append_key(slice, a.head_dim, token, key);
    Page::append_value(slice, a.head_dim, token, k + a.num_kv_heads * a.head_dim);
  }
}

template <int R>
struct Tile {  // working memory of R query rows
  const float* q[R];  // rotated and scaled by 1 / sqrt(D)
  float q_sum[R];
  int64_t limit[R];  // the row sees positions below this
  float* out[R];     // unnormalised output [D]
  float top[R];      // running maximum of scores
  simd::F total[R];  // running sum of probabilities, by lane
  simd::F shift[R];  // running sum of probabilities times V minima, by lane
  alignas(64) float p[R][kPage];  // scores, then probabilities times V scales
  float decay[R];                 // what the page's new maximum shrinks earlier sums by
};

template <class Page, int R>
inline void scores(const Attention& a, const uint8_t* slice, Tile<R>& t) {
  using namespace simd;
  for (int lane = 0; lane < kPlane; lane += W) {
    F sum[R][4];
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int i = 0; i < 4; ++i) sum[r][i] = set(0);
    }
    for (int64_t d = 0; d < a.head_dim; ++d) {
      F k[4];
      Page::template planes<4>(slice, d * 4, lane, k);
      UNROLL for (int r = 0; r < R; ++r) {
        const F q = set(t.q[r][d]);
        UNROLL for (int i = 0; i < 4; ++i) sum[r][i] = fma(k[i], q, sum[r][i]);
      }
    }
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int i = 0; i < 4; ++i) store(t.p[r] + i * kPlane + lane, sum[r][i]);
    }
  }
}

// Online softmax (Milakov and Gimelshein 2018) of one row over one page that begins at token `start`.
// Slots the row must not see, unwritten ones included, are selected away: their parameters may be NaN.
template <class Page, int R>
inline void softmax_page(const Attention& a, const uint8_t* slice, int64_t start, int r, Tile<R>& t) {
  using namespace simd;
  const F bound = set(static_cast<float>(t.limit[r] - start));  // tokens of the page the row sees
  const uint16_t* params = reinterpret_cast<const uint16_t*>(slice + 2 * Page::body_bytes(a.head_dim));
  float counting[W];
  for (int i = 0; i < W; ++i) counting[i] = static_cast<float>(i);
  const F lanes = load(counting);
  F best = set(-INFINITY);
  for (int i = 0; i < kPage; i += W) {
    F s = load(t.p[r] + i);
    if constexpr (Page::kQuantized) s = fma(s, load_f16(params + i), load_f16(params + kPage + i) * set(t.q_sum[r]));
    s = select_less(lanes + set(static_cast<float>(i)), bound, s, set(-INFINITY));
    store(t.p[r] + i, s);
    best = max(s, best);
  }
  const float top = std::max(t.top[r], largest(best));
  t.decay[r] = std::exp(t.top[r] - top);
  t.top[r] = top;
  t.total[r] = t.total[r] * set(t.decay[r]);
  t.shift[r] = t.shift[r] * set(t.decay[r]);
  for (int i = 0; i < kPage; i += W) {
    const F index = lanes + set(static_cast<float>(i));
    F p = exp(load(t.p[r] + i) - set(top));
    t.total[r] = t.total[r] + p;
    if constexpr (Page::kQuantized) {
      const F low = select_less(index, bound, load_f16(params + 3 * kPage + i), set(0));
      t.shift[r] = fma(p, low, t.shift[r]);
      p = p * select_less(index, bound, load_f16(params + 2 * kPage + i), set(0));
    }
    store(t.p[r] + i, p);
  }
}

// out = out * decay + P V for N planes of the head from plane `first` on. `tokens` of the page are visible.
template <class Page, int R, int N>
inline void values(const Attention& a, const uint8_t* body, int64_t first, int64_t tokens, Tile<R>& t) {
  using namespace simd;
  const int64_t row_planes = a.head_dim / kPlane;
  for (int lane = 0; lane < kPlane; lane += W) {
    F sum[R][N];
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int i = 0; i < N; ++i) sum[r][i] = load(t.out[r] + (first + i) * kPlane + lane) * set(t.decay[r]);
    }
    for (int64_t token = 0; token < tokens; ++token) {
      F v[N];
      Page::template planes<N>(body, token * row_planes + first, lane, v);
      UNROLL for (int r = 0; r < R; ++r) {
        const F p = set(t.p[r][token]);
        UNROLL for (int i = 0; i < N; ++i) sum[r][i] = fma(v[i], p, sum[r][i]);
      }
    }
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int i = 0; i < N; ++i) store(t.out[r] + (first + i) * kPlane + lane, sum[r][i]);
    }
  }
}

// Query rows of one sequence and KV head; row i is head i % group of token first_token + i / group.
struct Queries {
  int64_t sequence, head, first_token, tokens;
};

template <class Page, int R>
void attend(const Attention& a, const Step& s, const Queries& queries, int64_t row) {
  using namespace simd;
  const int64_t dim = a.head_dim, row_planes = dim / kPlane;
  float* memory = scratch<5, float>(2 * R * dim);
  Tile<R> t;
  int64_t seen = 0;
  UNROLL for (int r = 0; r < R; ++r) {
    const int64_t token = queries.first_token + (row + r) / a.group();
    const int64_t head = queries.head * a.group() + (row + r) % a.group();
    float* q = memory + r * dim;
    rotate(a, s.qkv + token * a.row_width() + head * dim, s.positions[token], q);
    t.q[r] = q;
    t.q_sum[r] = 0;
    for (int64_t d = 0; d < dim; ++d) t.q_sum[r] += q[d] *= 1.0f / std::sqrt(static_cast<float>(dim));
    t.limit[r] = s.positions[token] + 1;
    seen = std::max(seen, t.limit[r]);
    t.out[r] = memory + (R + r) * dim;
    std::fill(t.out[r], t.out[r] + dim, 0.0f);
    t.top[r] = -INFINITY;
    t.total[r] = t.shift[r] = set(0);
  }
  const int32_t* table = s.block_tables + queries.sequence * s.table_width;
  for (int64_t start = 0; start < seen; start += kPage) {
    const uint8_t* slice = s.cache + (table[start / kPage] * a.num_kv_heads + queries.head) * slice_bytes<Page>(a);
    const uint8_t* body = slice + Page::body_bytes(dim);
    const int64_t tokens = std::min<int64_t>(kPage, seen - start);
    scores<Page, R>(a, slice, t);
    UNROLL for (int r = 0; r < R; ++r) softmax_page<Page, R>(a, slice, start, r, t);
    int64_t plane = 0;
    if (row_planes % 4 == 0) {
      for (; plane < row_planes; plane += 4) values<Page, R, 4>(a, body, plane, tokens, t);
    }
    for (; plane < row_planes; ++plane) values<Page, R, 1>(a, body, plane, tokens, t);
  }
  UNROLL for (int r = 0; r < R; ++r) {
    const int64_t token = queries.first_token + (row + r) / a.group();
    const int64_t head = queries.head * a.group() + (row + r) % a.group();
    const F shift = set(sum(t.shift[r])), scale = set(1.0f / sum(t.total[r]));
    float* y = s.out + (token * a.num_heads + head) * dim;
    for (int64_t d = 0; d < dim; d += W) store(y + d, (load(t.out[r] + d) + shift) * scale);
  }
}

template <class Page>
void attend_rows(const Attention& a, const Step& s, const Queries& queries) {
  const int64_t rows = queries.tokens * a.group();
  int64_t row = 0;
  if constexpr (simd::W == 16) {  // 24 accumulators need AVX-512's 32 registers
    for (; row + 6 <= rows; row += 6) attend<Page, 6>(a, s, queries, row);
  }
  for (; row + 3 <= rows; row += 3) attend<Page, 3>(a, s, queries, row);
  for (; row < rows; ++row) attend<Page, 1>(a, s, queries, row);
}

template <class Page>
void run_attention_kind(const Attention& a, const Step& s) {
  const std::vector<Run> runs = page_runs(s);
  parallel_for(static_cast<int64_t>(runs.size()) * a.num_kv_heads, [&](int64_t i) {
    append<Page>(a, s, runs[i / a.num_kv_heads], i % a.num_kv_heads);
  });
  constexpr int64_t kTokens = 16;  // of one chunk
  std::vector<Queries> chunks;
  for (int64_t q = s.sequences - 1; q >= 0; --q) {
    const int64_t first = s.cu_seqlens[q], stop = s.cu_seqlens[q + 1];
    for (int64_t t = (stop - first - 1) / kTokens * kTokens + first; t >= first; t -= kTokens) {  // longest first
      for (int64_t h = 0; h < a.num_kv_heads; ++h) chunks.push_back({q, h, t, std::min(kTokens, stop - t)});
    }
  }
  parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i) { attend_rows<Page>(a, s, chunks[i]); });
}

enum StepError : int { kOk = 0, kBadPosition = 1, kBadSlot = 2, kBadPage = 3, kBadContext = 4 };

// What would make a kernel read or write outside its buffers.
inline int check_step(const Attention& a, const Step& s) {
  for (int64_t t = 0; t < s.tokens; ++t) {
    if (s.positions[t] < 0 || s.positions[t] >= a.max_position) return kBadPosition;
    if (s.slots[t] >= s.num_pages * kPage) return kBadSlot;
  }
  if (s.cu_seqlens[0] < 0 || s.cu_seqlens[s.sequences] > s.tokens) return kBadContext;
  for (int64_t q = 0; q < s.sequences; ++q) {
    const int64_t pages = (s.context_lens[q] + kPage - 1) / kPage;
    if (pages > s.table_width || s.cu_seqlens[q] > s.cu_seqlens[q + 1]) return kBadContext;
    for (int64_t p = 0; p < pages; ++p) {
      const int32_t page = s.block_tables[q * s.table_width + p];
      if (page < 0 || page >= s.num_pages) return kBadPage;
    }
    for (int64_t t = s.cu_seqlens[q]; t < s.cu_seqlens[q + 1]; ++t) {
      if (s.positions[t] >= s.context_lens[q]) return kBadContext;
    }
  }
  return kOk;
}

inline int run_attention(const Attention& a, const Step& s) {
  if (const int error = check_step(a, s)) return error;
  switch (a.kind) {
    case kKvF32: run_attention_kind<FloatPage<float>>(a, s); break;
    case kKvF16: run_attention_kind<FloatPage<uint16_t>>(a, s); break;
    case kKv4: run_attention_kind<Kv4Page>(a, s); break;
  }
  return kOk;
}

}  // namespace tessera
