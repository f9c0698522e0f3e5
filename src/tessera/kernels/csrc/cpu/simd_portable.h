// Vectors of 4 floats and 32-bit integers with the compiler's own vector types: any architecture.
#pragma once

#include <cstdint>
#include <cstring>

namespace tessera::simd {

constexpr int W = 4;
using F = float __attribute__((vector_size(16)));
using I = int32_t __attribute__((vector_size(16)));
using U = uint32_t __attribute__((vector_size(16)));

inline F set(float x) { return F{x, x, x, x}; }
inline I set_int(int32_t x) { return I{x, x, x, x}; }
template <class V>
inline V load_as(const void* p) {
  V x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline F load(const float* p) { return load_as<F>(p); }
inline I load_int(const void* p) { return load_as<I>(p); }
inline void store(float* p, F x) { memcpy(p, &x, sizeof x); }
inline void store_int(int32_t* p, I x) { memcpy(p, &x, sizeof x); }
inline I bits(F x) { return (I)x; }
inline F from_bits(I x) { return (F)x; }

inline float f16_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  uint32_t out;
  if (rest >= 0x7c00) {
    out = 0x7f800000 | (rest & 0x3ff) << 13;
  } else if (rest >= 0x400) {
    out = (rest << 13) + (112u << 23);
  } else {  // subnormal: rest * 2^-24, exact
    const float x = (float)rest * 0x1p-24f;
    memcpy(&out, &x, sizeof out);
  }
  out |= sign;
  float x;
  memcpy(&x, &out, sizeof x);
  return x;
}
inline uint16_t float_to_f16(float x) {  // half to even
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00;
  if (u >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (u < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
    float y;
    memcpy(&y, &u, sizeof y);
    y += 0.5f;  // one unit in the last place of 0.5 is 2^-24
    memcpy(&u, &y, sizeof u);
    return sign | (uint16_t)(u - 0x3f000000);
  }
  u += 0xfff + (u >> 13 & 1);
  return sign | (uint16_t)((u >> 13) - (112 << 10));
}
inline F load_f16(const uint16_t* p) {
  return F{f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3])};
}
inline void store_f16(uint16_t* p, F x) {
  for (int i = 0; i < W; ++i) p[i] = float_to_f16(x[i]);
}
inline F load_bf16(const uint16_t* p) {
  return from_bits(I{p[0] << 16, p[1] << 16, p[2] << 16, (int32_t)((uint32_t)p[3] << 16)});
}
inline F fma(F a, F b, F c) { return a * b + c; }
inline F max(F a, F b) { return a > b ? a : b; }  // b where either is NaN
inline F min(F a, F b) { return a < b ? a : b; }  // b where either is NaN
inline F to_float(I x) { return __builtin_convertvector(x, F); }
inline I round_to_int(F x) {  // half to even, |x| < 2^22: adding 1.5 * 2^23 leaves no fraction bits
  return bits(x + set(0x1.8p23f)) - set_int(0x4b400000);
}
inline I add_int(I a, I b) { return a + b; }
inline I and_int(I a, I b) { return a & b; }
inline I max_int(I a, I b) { return a > b ? a : b; }
inline I shift_left(I x, int n) { return (I)((U)x << n); }
inline I shift_right(I x, int n) { return (I)((U)x >> n); }
inline F select_less(F a, F b, F yes, F no) { return a < b ? yes : no; }  // `no` where either is NaN
inline float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float largest(F x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
inline float smallest(F x) { return -largest(-x); }
inline int32_t sum_int(I x) { return x[0] + x[1] + x[2] + x[3]; }
inline int32_t largest_int(I x) {
  const int32_t a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
inline bool any_nan(F x) {
  const I unordered = x != x;
  return (unordered[0] | unordered[1] | unordered[2] | unordered[3]) != 0;
}
inline void store_int8(int8_t* p, I x) {
  for (int i = 0; i < W; ++i) p[i] = (int8_t)x[i];
}
inline I load_uint8(const uint8_t* p) { return I{p[0], p[1], p[2], p[3]}; }

// Nibble J of each 32-bit word as a float.
template <int J>
inline F nibble(I word) {
  return to_float(shift_right(word, 4 * J) & 15);
}

}  // namespace tessera::simd
