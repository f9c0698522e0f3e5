// Vectors of 8 floats and 32-bit integers with AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::simd {

constexpr int W = 8;
using F = __m256;
using I = __m256i;

inline F set(float x) { return _mm256_set1_ps(x); }
inline I set_int(int32_t x) { return _mm256_set1_epi32(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline I load_int(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline void store_int(int32_t* p, I x) { _mm256_storeu_si256((__m256i*)p, x); }
inline F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline F load_bf16(const uint16_t* p) {
  const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline void store_f16(uint16_t* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
inline F min(F a, F b) { return _mm256_min_ps(a, b); }  // b where either is NaN
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline I round_to_int(F x) { return _mm256_cvtps_epi32(x); }  // half to even
inline I bits(F x) { return _mm256_castps_si256(x); }
inline F from_bits(I x) { return _mm256_castsi256_ps(x); }
inline I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
inline I and_int(I a, I b) { return _mm256_and_si256(a, b); }
inline I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
inline I shift_left(I x, int n) { return _mm256_slli_epi32(x, n); }
inline I shift_right(I x, int n) { return _mm256_srl_epi32(x, _mm_cvtsi32_si128(n)); }
inline F select_less(F a, F b, F yes, F no) {  // a < b ? yes : no; `no` where either is NaN
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
template <class T, class V, class Op>
inline T fold(V x, Op op) {
  T lanes[W];
  __builtin_memcpy(lanes, &x, sizeof lanes);
  for (int step = W / 2; step; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] = op(lanes[i], lanes[i + step]);
  }
  return lanes[0];
}
inline float sum(F x) { return fold<float>(x, [](float a, float b) { return a + b; }); }
inline float largest(F x) { return fold<float>(x, [](float a, float b) { return a > b ? a : b; }); }
inline float smallest(F x) { return fold<float>(x, [](float a, float b) { return a < b ? a : b; }); }
inline int32_t sum_int(I x) { return fold<int32_t>(x, [](int32_t a, int32_t b) { return a + b; }); }
inline int32_t largest_int(I x) { return fold<int32_t>(x, [](int32_t a, int32_t b) { return a > b ? a : b; }); }
inline bool any_nan(F x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
inline void store_int8(int8_t* p, I x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
inline I load_uint8(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }

// Nibble J of each 32-bit word as a float.
template <int J>
inline F nibble(I word) {
  return to_float(and_int(J ? _mm256_srli_epi32(word, 4 * J) : word, set_int(15)));
}

}  // namespace tessera::simd
