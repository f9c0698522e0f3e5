#pragma once
#include "common/base.cuh"

namespace tessera {

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

inline float to_float(bf16 x) {
  const u32 word = static_cast<u32>(x.bits) << 16;
  float y;
  memcpy(&y, &word, 4);
  return y;
}
inline float to_float(f16 x) {
  const int exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
  const float size = exponent ? std::ldexp(1024.f + digits, exponent - 25) : std::ldexp(float(digits), -24);
  return x.bits >> 15 ? -size : size;
}
template <class T>
T from_float(float x);
template <>
inline bf16 from_float<bf16>(float x) {  // finite numbers
  u32 word;
  memcpy(&word, &x, 4);
  return {static_cast<u16>((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}
template <>
inline f16 from_float<f16>(float x) {  // finite numbers
  if (x == 0) return {0};
  int exponent;
  std::frexp(x, &exponent);
  const int last = std::max(exponent - 11, -24);
  const u32 digits = static_cast<u32>(std::nearbyint(std::ldexp(std::abs(x), -last)));
  return {static_cast<u16>((std::signbit(x) << 15) + (last + 24 << 10) + digits)};
}

template <class T>
u32 pack2(float lo, float hi) { return from_float<T>(lo).bits | static_cast<u32>(from_float<T>(hi).bits) << 16; }

template <class T>
float2 unpack2(u32 x) { return {to_float(T{static_cast<u16>(x)}), to_float(T{static_cast<u16>(x >> 16)})}; }

template <class T>
u32 fma2(u32 a, u32 b, u32 c) {  // exact ones
  const float2 x = unpack2<T>(a), y = unpack2<T>(b), z = unpack2<T>(c);
  return pack2<T>(x.x * y.x + z.x, x.y * y.y + z.y);
}
template <class T>
u32 add2(u32 a, u32 b) {
  const float2 x = unpack2<T>(a), y = unpack2<T>(b);
  return pack2<T>(x.x + y.x, x.y + y.y);
}
template <class T>
u32 mul2(u32 a, u32 b) {
  const float2 x = unpack2<T>(a), y = unpack2<T>(b);
  return pack2<T>(x.x * y.x, x.y * y.y);
}

inline u32 load_acquire(const u32* p) { return reinterpret_cast<const std::atomic<u32>*>(p)->load(); }
inline u32 add_acquire_release(u32* p) { return reinterpret_cast<std::atomic<u32>*>(p)->fetch_add(1); }
inline u32 load_shared_word(u32 address) {
  u32 x;
  memcpy(&x, emulated::shared + address, 4);
  return x;
}
inline u32 load_shared_byte(u32 address) { return emulated::shared[address]; }
inline uint4 load_shared(u32 address) {
  uint4 x;
  memcpy(&x, emulated::shared + address, 16);
  return x;
}
inline void store_shared_word(u32 address, u32 x) { memcpy(emulated::shared + address, &x, 4); }
inline void store_shared(u32 address, uint2 x) { memcpy(emulated::shared + address, &x, 8); }
inline void store_shared(u32 address, uint4 x) { memcpy(emulated::shared + address, &x, 16); }

}  // namespace tessera
