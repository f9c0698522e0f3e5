// Attention of R query rows over pages of one KV head.
//
// A row is a (token, head of the KV head's group) pair, so grouped heads and the tokens of a prefill chunk
// share each decoded plane alike, and decode is prefill with one token. Scales and minima of 4-bit keys act on
// scores and those of values on probabilities (q . (s n + m) = s (q . n) + m sum q), so decoding a number is
// one conversion. Every row walks its pages from the first one, in segments of fixed length, with the same
// arithmetic whatever tile it is in: its result does not depend on chunking or batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

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

// Working memory of R query rows over one segment of their context.
template <int R>
struct Tile {
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

// Raw products q . n of all 64 tokens; meanwhile the next page's slice is asked for.
template <class Page, int R>
inline void scores(const Attention& a, const uint8_t* slice, const uint8_t* next, Tile<R>& t) {
  using namespace simd;
  for (int lane = 0; lane < kPlane; lane += W) {
    F sum[R][4];
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int i = 0; i < 4; ++i) sum[r][i] = set(0);
    }
    for (int64_t d = 0; d < a.head_dim; ++d) {
      F k[4];
      Page::template planes<4>(slice, d * 4, lane, k);
      __builtin_prefetch(next + d * (slice_bytes<Page>(a) / a.head_dim));
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
  if (t.limit[r] <= start) {  // nothing here is visible: leave the sums as they are
    std::fill(t.p[r], t.p[r] + kPage, 0.0f);
    t.decay[r] = 1;
    return;
  }
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

// A row's softmax over one segment of its context: the largest score, the sum of e^(score - top), and the
// values weighted alike. `out` has head_dim elements.
struct Partial {
  float top, total;
  float* out;

  // Adds the next segment. The same arithmetic in the same order wherever it happens, so that a row's result
  // does not depend on which thread computed which segment.
  void merge(const Partial& next, int64_t dim) {
    using namespace simd;
    const float highest = std::max(top, next.top);
    const float mine = std::exp(top - highest), theirs = std::exp(next.top - highest);
    top = highest;
    total = total * mine + next.total * theirs;
    for (int64_t d = 0; d < dim; d += W) {
      store(out + d, load(out + d) * set(mine) + load(next.out + d) * set(theirs));
    }
  }
};

// Positions start..stop-1 of R rows from `row` on; fills parts[R], except of rows that see none of them.
template <class Page, int R>
void attend_segment(const Attention& a, const Step& s, const Queries& queries, int64_t start, int64_t stop, Tile<R>& t,
                    Partial* parts) {
  using namespace simd;
  const int64_t dim = a.head_dim, row_planes = dim / kPlane;
  int64_t seen = 0;
  for (int r = 0; r < R; ++r) {
    seen = std::max(seen, t.limit[r]);
    t.out[r] = parts[r].out;
    std::fill(t.out[r], t.out[r] + dim, 0.0f);
    t.top[r] = -INFINITY;
    t.total[r] = t.shift[r] = set(0);
  }
  stop = std::min(stop, seen);
  const int32_t* table = s.block_tables + queries.sequence * s.table_width;
  const auto slice_at = [&](int64_t position) {
    return s.cache + (table[position / kPage] * a.num_kv_heads + queries.head) * slice_bytes<Page>(a);
  };
  for (int64_t page = start; page < stop; page += kPage) {
    const uint8_t* slice = slice_at(page);
    const uint8_t* body = slice + Page::body_bytes(dim);
    const int64_t tokens = std::min<int64_t>(kPage, seen - page);
    scores<Page, R>(a, slice, page + kPage < stop ? slice_at(page + kPage) : slice, t);
    UNROLL for (int r = 0; r < R; ++r) softmax_page<Page, R>(a, slice, page, r, t);
    int64_t plane = 0;
    if (row_planes % 4 == 0) {
      for (; plane < row_planes; plane += 4) values<Page, R, 4>(a, body, plane, tokens, t);
    }
    for (; plane < row_planes; ++plane) values<Page, R, 1>(a, body, plane, tokens, t);
  }
  for (int r = 0; r < R; ++r) {
    parts[r].top = t.top[r];
    parts[r].total = sum(t.total[r]);
    const F shift = set(sum(t.shift[r]));
    for (int64_t d = 0; d < dim; d += W) store(t.out[r] + d, load(t.out[r] + d) + shift);
  }
}

// Rotates and scales R query rows from `row` on into `memory` [R][head_dim].
template <int R>
void load_queries(const Attention& a, const Step& s, const Queries& queries, int64_t row, float* memory, Tile<R>& t) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  for (int r = 0; r < R; ++r) {
    const int64_t token = queries.first_token + (row + r) / a.group();
    const int64_t head = queries.head * a.group() + (row + r) % a.group();
    float* q = memory + r * a.head_dim;
    rotate(a, s.qkv + token * a.row_width() + head * a.head_dim, s.positions[token], q);
    t.q[r] = q;
    t.q_sum[r] = 0;
    for (int64_t d = 0; d < a.head_dim; ++d) t.q_sum[r] += q[d] *= scale;
    t.limit[r] = s.positions[token] + 1;
  }
}

}  // namespace tessera
