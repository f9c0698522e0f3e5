// Integer blocks with AVX2, or AVX-512 without VNNI. maddubs adds pairs of products in saturating int16:
// with codes below 16 eight of its results add up to at most 8 * 2 * 15 * 127 = 30480, which is safe, and the
// step to int32 multiplies by the group's scale for nothing. 8-bit codes go as two nibbles, 16 high + low.
#pragma once

#include <immintrin.h>

#include "linear_int.h"

namespace tessera {

#if defined(TESSERA_AVX512)
using Bytes = __m512i;
inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_words(int32_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
inline Bytes zero_bytes() { return _mm512_setzero_si512(); }
inline Bytes set_words(int32_t x) { return _mm512_set1_epi32(x); }
inline Bytes widen_bytes(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline Bytes maddubs(Bytes a, Bytes b) { return _mm512_maddubs_epi16(a, b); }
inline Bytes madd(Bytes a, Bytes b) { return _mm512_madd_epi16(a, b); }
inline Bytes add16(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
inline Bytes add32(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
inline Bytes sub32(Bytes a, Bytes b) { return _mm512_sub_epi32(a, b); }
inline Bytes mul32(Bytes a, Bytes b) { return _mm512_mullo_epi32(a, b); }
inline Bytes low_nibbles(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
#else
using Bytes = __m256i;
inline Bytes load_bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void store_words(int32_t* p, Bytes x) { _mm256_storeu_si256((__m256i*)p, x); }
inline Bytes zero_bytes() { return _mm256_setzero_si256(); }
inline Bytes set_words(int32_t x) { return _mm256_set1_epi32(x); }
inline Bytes widen_bytes(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
inline Bytes maddubs(Bytes a, Bytes b) { return _mm256_maddubs_epi16(a, b); }
inline Bytes madd(Bytes a, Bytes b) { return _mm256_madd_epi16(a, b); }
inline Bytes add16(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
inline Bytes add32(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
inline Bytes sub32(Bytes a, Bytes b) { return _mm256_sub_epi32(a, b); }
inline Bytes mul32(Bytes a, Bytes b) { return _mm256_mullo_epi32(a, b); }
inline Bytes low_nibbles(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
#endif

constexpr int kPart = sizeof(Bytes) / 4;  // outputs of a block that one vector holds

inline Bytes broadcast4(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, sizeof word);
  return set_words(word);
}

// sum[r] += scale * (q . x) over `chunks` chunks of 8 k; `scale` holds 16-bit pairs.
template <int R>
inline void nibble_dots(const uint8_t* codes, const int8_t* x, int64_t stride, int64_t chunks, Bytes scale,
                        Bytes* sum) {
  for (int64_t start = 0; start < chunks; start += 4) {
    Bytes part[R];
    UNROLL for (int r = 0; r < R; ++r) part[r] = zero_bytes();
    for (int64_t c = start; c < std::min(start + 4, chunks); ++c) {
      const Bytes v = load_bytes(codes + c * 64), low = low_nibbles(v), high = high_nibbles(v);
      UNROLL for (int r = 0; r < R; ++r) {
        part[r] = add16(part[r], maddubs(low, broadcast4(x + r * stride + c * 8)));
        part[r] = add16(part[r], maddubs(high, broadcast4(x + r * stride + c * 8 + 4)));
      }
    }
    UNROLL for (int r = 0; r < R; ++r) sum[r] = add32(sum[r], madd(part[r], scale));
  }
}

template <int R>
inline void w4_group_part(const IntLinear& w, int64_t block, int part, const Rows& x, int64_t row, Bytes* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes() + part * 4;
  const uint8_t* scales = w.group_scale + block * w.groups * kLanes + part;
  const uint8_t* zeros = w.group_zero + block * w.groups * kLanes + part;
  const int8_t* first = x.codes + row * x.stride;
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t start = g * w.group, size = std::min(w.group, w.k_padded - start);
    const Bytes scale = widen_bytes(scales + g * kLanes);
    const Bytes offset = mul32(scale, widen_bytes(zeros + g * kLanes));  // at most 255 * 15
    nibble_dots<R>(codes + start * 8, first + start, x.stride, size / 8, mul32(scale, set_words(0x10001)), sum);
    UNROLL for (int r = 0; r < R; ++r) {
      const int32_t total = x.group_sum[(row + r) * w.groups + g];  // fits 16 bits: groups have at most 256 k
      sum[r] = sub32(sum[r], madd(offset, set_words(total & 0xffff)));
    }
  }
}

template <int R>
inline void w4_channel_part(const IntLinear& w, int64_t block, int part, const Rows& x, int64_t row, Bytes* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes() + part * 4;
  nibble_dots<R>(codes, x.codes + row * x.stride, x.stride, w.k_padded / 8, set_words(0x10001), sum);
  const Bytes zero = widen_bytes(w.group_zero + block * kLanes + part);
  UNROLL for (int r = 0; r < R; ++r) sum[r] = sub32(sum[r], mul32(zero, set_words(x.row_sum[row + r])));
}

template <int R>
inline void w8_part(const IntLinear& w, int64_t block, int part, const Rows& x, int64_t row, Bytes* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes() + part * 4;
  const int8_t* first = x.codes + row * x.stride;
  const int64_t quads = w.k_padded / 4;
  for (int64_t start = 0; start < quads; start += 8) {
    Bytes low[R], high[R];
    UNROLL for (int r = 0; r < R; ++r) low[r] = high[r] = zero_bytes();
    for (int64_t q = start; q < std::min(start + 8, quads); ++q) {
      const Bytes v = load_bytes(codes + q * 64), a = low_nibbles(v), b = high_nibbles(v);
      UNROLL for (int r = 0; r < R; ++r) {
        const Bytes value = broadcast4(first + r * x.stride + q * 4);
        low[r] = add16(low[r], maddubs(a, value));
        high[r] = add16(high[r], maddubs(b, value));
      }
    }
    UNROLL for (int r = 0; r < R; ++r) {
      const Bytes both = add32(madd(low[r], set_words(0x10001)), madd(high[r], set_words(0x100010)));
      sum[r] = add32(sum[r], both);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) sum[r] = sub32(sum[r], set_words(128 * x.row_sum[row + r]));
}

template <int R>
void int_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int32_t (*sums)[kLanes]) {
  for (int part = 0; part < kLanes; part += kPart) {
    Bytes sum[R];
    UNROLL for (int r = 0; r < R; ++r) sum[r] = zero_bytes();
    if (w.kind == kW8) {
      w8_part<R>(w, block, part, x, row, sum);
    } else if (w.kind == kW4Group) {
      w4_group_part<R>(w, block, part, x, row, sum);
    } else {
      w4_channel_part<R>(w, block, part, x, row, sum);
    }
    UNROLL for (int r = 0; r < R; ++r) store_words(sums[r] + part, sum[r]);
  }
}

}  // namespace tessera
