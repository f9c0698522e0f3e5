// Integer blocks with AVX-512 VNNI: one instruction per 64 products of unsigned weights and signed x.
#pragma once

#include <immintrin.h>

#include "linear_int.h"

namespace tessera {

inline __m512i broadcast4(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, sizeof word);
  return _mm512_set1_epi32(word);
}

inline __m512i widen16(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }

// Weights stream from memory once per step: asking for them this far ahead is worth a tenth of the bandwidth.
constexpr int64_t kPrefetch = 1536;
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetch, _MM_HINT_T0); }

// Sums of q x over `chunks` chunks of 8 k, low and high nibbles in chains of their own.
template <int R>
inline void nibble_dots(const uint8_t* codes, const int8_t* x, int64_t stride, int64_t chunks, __m512i* sum) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i low[R], high[R];
  UNROLL for (int r = 0; r < R; ++r) low[r] = high[r] = _mm512_setzero_si512();
  for (int64_t c = 0; c < chunks; ++c) {
    const __m512i v = _mm512_loadu_si512(codes + c * 64);
    prefetch(codes + c * 64);
    const __m512i a = _mm512_and_si512(v, mask), b = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
    UNROLL for (int r = 0; r < R; ++r) {
      low[r] = _mm512_dpbusd_epi32(low[r], a, broadcast4(x + r * stride + c * 8));
      high[r] = _mm512_dpbusd_epi32(high[r], b, broadcast4(x + r * stride + c * 8 + 4));
    }
  }
  UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_add_epi32(low[r], high[r]);
}

template <int R>
inline void w4_group_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, __m512i* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes();
  const uint8_t* scales = w.group_scale + block * w.groups * kLanes;
  const uint8_t* zeros = w.group_zero + block * w.groups * kLanes;
  const int8_t* first = x.codes + row * x.stride;
  UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t start = g * w.group, size = std::min(w.group, w.k_padded - start);
    const __m512i scale = widen16(scales + g * kLanes), zero = widen16(zeros + g * kLanes);
    __m512i part[R];
    nibble_dots<R>(codes + start * 8, first + start, x.stride, size / 8, part);
    UNROLL for (int r = 0; r < R; ++r) {
      const int32_t total = x.group_sum[(row + r) * w.groups + g];  // fits 16 bits: groups have at most 256 k
      const __m512i offset = _mm512_madd_epi16(zero, _mm512_set1_epi32(total & 0xffff));
      sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(scale, _mm512_sub_epi32(part[r], offset)));
    }
  }
}

template <int R>
inline void w4_channel_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, __m512i* sum) {
  const int8_t* first = x.codes + row * x.stride;
  nibble_dots<R>(w.codes + block * w.block_bytes(), first, x.stride, w.k_padded / 8, sum);
  const __m512i zero = widen16(w.group_zero + block * kLanes);
  UNROLL for (int r = 0; r < R; ++r) {
    const __m512i offset = _mm512_mullo_epi32(zero, _mm512_set1_epi32(x.row_sum[row + r]));
    sum[r] = _mm512_sub_epi32(sum[r], offset);
  }
}

template <int R>
inline void w8_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, __m512i* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes();
  const int8_t* first = x.codes + row * x.stride;
  __m512i even[R], odd[R];
  UNROLL for (int r = 0; r < R; ++r) even[r] = odd[r] = _mm512_setzero_si512();
  const int64_t quads = w.k_padded / 4;
  int64_t q = 0;
  for (; q + 2 <= quads; q += 2) {
    const __m512i a = _mm512_loadu_si512(codes + q * 64), b = _mm512_loadu_si512(codes + q * 64 + 64);
    prefetch(codes + q * 64);
    prefetch(codes + q * 64 + 64);
    UNROLL for (int r = 0; r < R; ++r) {
      even[r] = _mm512_dpbusd_epi32(even[r], a, broadcast4(first + r * x.stride + q * 4));
      odd[r] = _mm512_dpbusd_epi32(odd[r], b, broadcast4(first + r * x.stride + q * 4 + 4));
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    if (q < quads) {
      const __m512i last = broadcast4(first + r * x.stride + q * 4);
      even[r] = _mm512_dpbusd_epi32(even[r], _mm512_loadu_si512(codes + q * 64), last);
    }
    const __m512i offset = _mm512_set1_epi32(128 * x.row_sum[row + r]);
    sum[r] = _mm512_sub_epi32(_mm512_add_epi32(even[r], odd[r]), offset);
  }
}

template <int R>
void int_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int32_t (*sums)[kLanes]) {
  __m512i sum[R];
  if (w.kind == kW8) {
    w8_block<R>(w, block, x, row, sum);
  } else if (w.kind == kW4Group) {
    w4_group_block<R>(w, block, x, row, sum);
  } else {
    w4_channel_block<R>(w, block, x, row, sum);
  }
  UNROLL for (int r = 0; r < R; ++r) _mm512_storeu_si512(sums[r], sum[r]);
}

}  // namespace tessera
