// Vectors of 16 floats and 32-bit integers with AVX-512 (F, BW, VL, DQ).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::simd {

constexpr int W = 16;
using F = __m512;
using I = __m512i;

inline F set(float x) { return _mm512_set1_ps(x); }
inline I set_int(int32_t x) { return _mm512_set1_epi32(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline I load_int(const void* p) { return _mm512_loadu_si512(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline void store_int(int32_t* p, I x) { _mm512_storeu_si512(p, x); }
inline F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline F load_bf16(const uint16_t* p) {
  const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline void store_f16(uint16_t* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
inline F min(F a, F b) { return _mm512_min_ps(a, b); }  // b where either is NaN
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline I round_to_int(F x) { return _mm512_cvtps_epi32(x); }  // half to even
inline I bits(F x) { return _mm512_castps_si512(x); }
inline F from_bits(I x) { return _mm512_castsi512_ps(x); }
inline I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
inline I and_int(I a, I b) { return _mm512_and_si512(a, b); }
inline I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
inline I shift_left(I x, int n) { return _mm512_slli_epi32(x, n); }
inline I shift_right(I x, int n) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(n)); }
inline F select_less(F a, F b, F yes, F no) {  // a < b ? yes : no; `no` where either is NaN
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
inline float sum(F x) { return _mm512_reduce_add_ps(x); }
inline float largest(F x) { return _mm512_reduce_max_ps(x); }
inline float smallest(F x) { return _mm512_reduce_min_ps(x); }
inline int32_t sum_int(I x) { return _mm512_reduce_add_epi32(x); }
inline int32_t largest_int(I x) { return _mm512_reduce_max_epi32(x); }
inline bool any_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
inline void store_int8(int8_t* p, I x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x)); }
inline I load_uint8(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }

// Nibble J of each 32-bit word as a float: a look-up that uses the low four bits of its index.
template <int J>
inline F nibble(I word) {
  const F table = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_permutexvar_ps(J ? _mm512_srli_epi32(word, 4 * J) : word, table);
}

}  // namespace tessera::simd
