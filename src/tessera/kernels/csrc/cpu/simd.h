// The vector types of the architecture this build is for, and functions on top of them.
#pragma once

#if defined(TESSERA_AVX512) || defined(TESSERA_AVX512VNNI)
#include "simd_avx512.h"
#elif defined(TESSERA_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

// Before loops over arrays of vectors: only when they are unrolled early do the arrays live in registers.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

namespace tessera::simd {

constexpr float kExpLow = -87.0f;  // near the last normal float32; below it exp gives 0
constexpr float kExpHigh = 88.0f;  // above it exp stays at e^88 = 1.7e38

// e^x within 2 units in the last place between the bounds; NaN stays NaN.
inline F exp(F x) {
  const F bounded = min(set(kExpHigh), max(set(kExpLow), x));
  const F scaled = bounded * set(1.44269504088896341f);
  const I n = round_to_int(scaled);
  const F k = to_float(n);
  F r = fma(k, set(-0.693359375f), bounded);  // ln 2 in two parts (Cody and Waite)
  r = fma(k, set(2.12194440e-4f), r);
  F p = set(1.0f / 5040);  // Taylor up to r^7: |r| <= ln(2) / 2 leaves 5e-9
  p = fma(p, r, set(1.0f / 720));
  p = fma(p, r, set(1.0f / 120));
  p = fma(p, r, set(1.0f / 24));
  p = fma(p, r, set(1.0f / 6));
  p = fma(p, r, set(0.5f));
  p = fma(p, r, set(1.0f));
  p = fma(p, r, set(1.0f));
  const F power = from_bits(shift_left(add_int(n, set_int(127)), 23));
  return select_less(x, set(kExpLow), set(0.0f), p * power);
}

}  // namespace tessera::simd
