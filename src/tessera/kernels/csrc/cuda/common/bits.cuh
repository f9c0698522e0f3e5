// Integer instructions that dequantization is built of.
#pragma once
#include "common/base.cuh"

namespace tessera {

// lop3.b32, sm_50: any function of three words, bit by bit. kTable = f(0xF0, 0xCC, 0xAA).
template <int kTable>
TESSERA_DEVICE u32 lop3(u32 a, u32 b, u32 c) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(kTable));
  return d;
}
constexpr int kAndOr = (0xF0 & 0xCC) | 0xAA;   // (a & b) | c
constexpr int kAndXor = (0xF0 & 0xCC) ^ 0xAA;  // (a & b) ^ c

// prmt.b32, sm_20: byte i of the result is byte (selector >> 4 i) & 7 of {b, a}; bit 3 of a nibble copies the sign.
TESSERA_DEVICE u32 prmt(u32 a, u32 b, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}
// Byte i of x in all four lanes.
template <int i>
TESSERA_DEVICE u32 broadcast_byte(u32 x) { return prmt(x, 0, 0x1111 * i); }

// shf.r.wrap.b32, sm_32: the low word of {hi, lo} >> (n mod 32)
TESSERA_DEVICE u32 funnel_right(u32 lo, u32 hi, u32 n) {
  u32 d;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(lo), "r"(hi), "r"(n));
  return d;
}

// dp4a.s32.s32, sm_61: c + the products of four signed byte lanes
TESSERA_DEVICE i32 dp4a(u32 a, u32 b, i32 c) {
  i32 d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Four values of -128..127 as bytes, `a` lowest.
TESSERA_DEVICE u32 pack_bytes(i32 a, i32 b, i32 c, i32 d) {
  return prmt(prmt(a, b, 0x0040), prmt(c, d, 0x0040), 0x5410);
}

}  // namespace tessera
