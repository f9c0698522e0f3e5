// Rotary embedding, append to a paged KV cache, and causal attention over what the cache then holds.
#pragma once

#include <vector>

#include "attention_tile.h"

namespace tessera {

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

constexpr int64_t kSegment = 8 * kPage;  // positions; fixed, since segments are part of a row's arithmetic

inline int64_t segments_of(int64_t positions) { return (positions + kSegment - 1) / kSegment; }

// Normalised output of one row.
inline void finish_row(const Attention& a, const Step& s, const Queries& queries, int64_t row, const Partial& sum) {
  using namespace simd;
  const int64_t token = queries.first_token + row / a.group();
  const int64_t head = queries.head * a.group() + row % a.group();
  float* y = s.out + (token * a.num_heads + head) * a.head_dim;
  const F scale = set(1.0f / sum.total);
  for (int64_t d = 0; d < a.head_dim; d += W) store(y + d, load(sum.out + d) * scale);
}

// All segments of R rows, one after the other.
template <class Page, int R>
void attend(const Attention& a, const Step& s, const Queries& queries, int64_t row) {
  const int64_t dim = a.head_dim;
  float* memory = scratch<5, float>(3 * R * dim);
  Tile<R> t;
  load_queries<R>(a, s, queries, row, memory, t);
  Partial whole[R], part[R];
  for (int r = 0; r < R; ++r) {
    whole[r].out = memory + (R + r) * dim;
    part[r].out = memory + (2 * R + r) * dim;
  }
  attend_segment<Page, R>(a, s, queries, 0, kSegment, t, whole);
  const int64_t seen = *std::max_element(t.limit, t.limit + R);
  for (int64_t start = kSegment; start < seen; start += kSegment) {
    attend_segment<Page, R>(a, s, queries, start, start + kSegment, t, part);
    for (int r = 0; r < R; ++r) {
      if (t.limit[r] > start) whole[r].merge(part[r], dim);
    }
  }
  for (int r = 0; r < R; ++r) finish_row(a, s, queries, row + r, whole[r]);
}

// One segment of R rows, into partial sums that `merge_rows` adds up.
template <class Page, int R>
void attend_part(const Attention& a, const Step& s, const Queries& queries, int64_t row, int64_t start,
                 Partial* parts) {
  Tile<R> t;
  load_queries<R>(a, s, queries, row, scratch<5, float>(R * a.head_dim), t);
  attend_segment<Page, R>(a, s, queries, start, start + kSegment, t, parts + row);
}

// f<R>(row) over tiles of rows: 24 accumulators need the 32 registers of AVX-512.
template <class F>
void each_tile(int64_t rows, const F& body) {
  int64_t row = 0;
  if constexpr (simd::W == 16) {
    for (; row + 6 <= rows; row += 6) body(std::integral_constant<int, 6>(), row);
  }
  for (; row + 3 <= rows; row += 3) body(std::integral_constant<int, 3>(), row);
  for (; row < rows; ++row) body(std::integral_constant<int, 1>(), row);
}

// Long contexts with too few queries to keep all threads busy: segments are chunks of their own.
template <class Page>
void run_split(const Attention& a, const Step& s, const std::vector<Queries>& queries) {
  struct Work {
    const Queries* queries;
    int64_t start;
    Partial* parts;
  };
  std::vector<Work> work;
  int64_t rows = 0;
  for (const Queries& q : queries) rows += segments_of(s.context_lens[q.sequence]) * q.tokens * a.group();
  std::vector<Partial> parts(rows);
  float* out = scratch<6, float>(rows * a.head_dim);
  for (int64_t i = 0; i < rows; ++i) parts[i].out = out + i * a.head_dim;
  Partial* next = parts.data();
  for (const Queries& q : queries) {
    for (int64_t start = 0; start < s.context_lens[q.sequence]; start += kSegment) {
      work.push_back({&q, start, next});
      next += q.tokens * a.group();
    }
  }
  parallel_for(static_cast<int64_t>(work.size()), [&](int64_t i) {
    const Work& w = work[i];
    each_tile(w.queries->tokens * a.group(), [&](auto tile, int64_t row) {
      attend_part<Page, tile>(a, s, *w.queries, row, w.start, w.parts);
    });
  });
  for (const Work& w : work) {
    if (w.start > 0) continue;
    const int64_t count = w.queries->tokens * a.group();
    for (int64_t row = 0; row < count; ++row) {
      const int64_t limit = s.positions[w.queries->first_token + row / a.group()] + 1;
      Partial& whole = w.parts[row];
      for (int64_t i = 1; i < segments_of(limit); ++i) whole.merge(w.parts[i * count + row], a.head_dim);
      finish_row(a, s, *w.queries, row, whole);
    }
  }
}

template <class Page>
void run_attention_kind(const Attention& a, const Step& s) {
  const std::vector<Run> runs = page_runs(s);
  parallel_for(static_cast<int64_t>(runs.size()) * a.num_kv_heads, [&](int64_t i) {
    append<Page>(a, s, runs[i / a.num_kv_heads], i % a.num_kv_heads);
  });
  constexpr int64_t kTokens = 16;  // of one chunk
  std::vector<Queries> chunks;
  int64_t longest = 0;
  for (int64_t q = s.sequences - 1; q >= 0; --q) {
    const int64_t first = s.cu_seqlens[q], stop = s.cu_seqlens[q + 1];
    if (first < stop) longest = std::max<int64_t>(longest, s.context_lens[q]);
    for (int64_t t = (stop - first - 1) / kTokens * kTokens + first; t >= first; t -= kTokens) {  // longest first
      for (int64_t h = 0; h < a.num_kv_heads; ++h) chunks.push_back({q, h, t, std::min(kTokens, stop - t)});
    }
  }
  const int64_t count = static_cast<int64_t>(chunks.size());
  if (longest > kSegment && count < 4 * Pool::instance().threads()) return run_split<Page>(a, s, chunks);
  parallel_for(count, [&](int64_t i) {
    each_tile(chunks[i].tokens * a.group(), [&](auto tile, int64_t row) { attend<Page, tile>(a, s, chunks[i], row); });
  });
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
