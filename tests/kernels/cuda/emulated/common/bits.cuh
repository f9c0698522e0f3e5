#pragma once
#include "common/base.cuh"

namespace tessera {

template <int kTable>
u32 lop3(u32 a, u32 b, u32 c) {
  u32 d = 0;
  for (int i = 0; i < 8; ++i)
    if (kTable >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return d;
}
constexpr int kAndOr = (0xF0 & 0xCC) | 0xAA;  // (a & b) | c

inline u32 prmt(u32 a, u32 b, u32 selector) {
  const u64 bytes = a | static_cast<u64>(b) << 32;
  u32 d = 0;
  for (int i = 0; i < 4; ++i) d |= static_cast<u32>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return d;
}

template <int i>
u32 broadcast_byte(u32 x) { return (x >> 8 * i & 0xff) * 0x01010101u; }

}  // namespace tessera
