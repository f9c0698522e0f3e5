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
template <class T>
T from_float(float x);
template <>
inline bf16 from_float<bf16>(float x) {  // finite numbers
  u32 word;
  memcpy(&word, &x, 4);
  return {static_cast<u16>((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}

template <class T>
u32 pack2(float lo, float hi) { return from_float<T>(lo).bits | static_cast<u32>(from_float<T>(hi).bits) << 16; }

inline u32 load_acquire(const u32* p) { return reinterpret_cast<const std::atomic<u32>*>(p)->load(); }
inline u32 add_acquire_release(u32* p) { return reinterpret_cast<std::atomic<u32>*>(p)->fetch_add(1); }
inline u32 load_shared_word(u32 address) {
  u32 x;
  memcpy(&x, emulated::shared + address, 4);
  return x;
}
inline uint4 load_shared(u32 address) {
  uint4 x;
  memcpy(&x, emulated::shared + address, 16);
  return x;
}
inline void store_shared_word(u32 address, u32 x) { memcpy(emulated::shared + address, &x, 4); }
inline void store_shared(u32 address, uint2 x) { memcpy(emulated::shared + address, &x, 8); }
inline void store_shared(u32 address, uint4 x) { memcpy(emulated::shared + address, &x, 16); }

}  // namespace tessera
