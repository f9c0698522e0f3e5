// 16-bit floats as raw words, conversions, two-lane arithmetic, and vector loads and stores with cache hints.
#pragma once
#include "common/base.cuh"

namespace tessera {

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

// cvt.f32.f16, any sm
TESSERA_DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
// A bf16 is the upper half of a float.
TESSERA_DEVICE float to_float(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
TESSERA_DEVICE float to_float(float x) { return x; }

// Round to nearest even. T is f16, bf16 (sm_80) or float.
template <class T>
TESSERA_DEVICE T from_float(float x);
template <>
TESSERA_DEVICE f16 from_float<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
TESSERA_DEVICE bf16 from_float<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
TESSERA_DEVICE float from_float<float>(float x) { return x; }

// Two lanes in a word, `lo` in the low half. cvt.rn.{f16x2,bf16x2}.f32, sm_80
template <class T>
TESSERA_DEVICE u32 pack2(float lo, float hi);
template <>
TESSERA_DEVICE u32 pack2<f16>(float lo, float hi) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
template <>
TESSERA_DEVICE u32 pack2<bf16>(float lo, float hi) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}

template <class T>
TESSERA_DEVICE float2 unpack2(u32 x) {
  return make_float2(to_float(T{static_cast<u16>(x)}), to_float(T{static_cast<u16>(x >> 16)}));
}

// Arithmetic on two lanes: {fma.rn,add,sub,mul,max,min}.{f16x2,bf16x2}. f16: sm_53; bf16: fma sm_80, the rest sm_90.
#define TESSERA_PAIR_OP(name, op16, opbf)                                          \
  template <class T>                                                               \
  TESSERA_DEVICE u32 name(u32 a, u32 b) {                                          \
    u32 d;                                                                         \
    if constexpr (is_same<T, f16>::value) {                                        \
      asm(op16 " %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));                         \
    } else {                                                                       \
      asm(opbf " %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));                         \
    }                                                                              \
    return d;                                                                      \
  }
TESSERA_PAIR_OP(add2, "add.rn.f16x2", "add.rn.bf16x2")
TESSERA_PAIR_OP(sub2, "sub.rn.f16x2", "sub.rn.bf16x2")
TESSERA_PAIR_OP(mul2, "mul.rn.f16x2", "mul.rn.bf16x2")
TESSERA_PAIR_OP(max2, "max.f16x2", "max.bf16x2")
TESSERA_PAIR_OP(min2, "min.f16x2", "min.bf16x2")
#undef TESSERA_PAIR_OP

template <class T>
TESSERA_DEVICE u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
  if constexpr (is_same<T, f16>::value) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  }
  return d;
}

// Rounds to the nearest even integer and saturates to -128..127. cvt.rni.sat.s8.f32, any sm
TESSERA_DEVICE i32 to_s8(float x) {
  i32 y;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// ex2.approx.ftz.f32, any sm: 2^x with about 2 ulp
TESSERA_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// N values moved as one access of N * sizeof(T) bytes (4, 8 or 16), which is also their alignment.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
  TESSERA_DEVICE T& operator[](int i) { return v[i]; }
  TESSERA_DEVICE const T& operator[](int i) const { return v[i]; }
};

// 16 bytes through the read-only path: memory that no one writes while the kernel runs. ld.global.nc, any sm
TESSERA_DEVICE uint4 load_nc(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
  return x;
}
// 16 bytes that are read once and may have been written while this kernel was there already, before a wait for the
// kernel ahead: no load_nc, which the assembler may move past such a wait. Not kept in L1, fetched into L2 by 128-byte
// lines. ld.global.L1::no_allocate.L2::128B, sm_80
TESSERA_DEVICE uint4 load_stream(const void* p) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
  return x;
}
// 16 bytes, first to leave the caches. st.global.cs, any sm
TESSERA_DEVICE void store_stream(void* p, uint4 x) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// 4 bytes written by another block of this grid, and the release that goes with it. {ld.acquire,red.release}.gpu, sm_70
TESSERA_DEVICE u32 load_acquire(const u32* p) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
TESSERA_DEVICE void add_release(u32* p, u32 x) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(p), "r"(x) : "memory");
}
// The count before one is added: what this thread has seen written is released, what others released is acquired.
// atom.acq_rel.gpu, sm_70
TESSERA_DEVICE u32 add_acquire_release(u32* count) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}
// 4 bytes of shared memory. ld.shared.b32, any sm
TESSERA_DEVICE u32 load_shared_word(u32 address) {
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
// A byte of it. ld.shared.u8, any sm
TESSERA_DEVICE u32 load_shared_byte(u32 address) {
  u32 x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
// 16 bytes of shared memory. {ld,st}.shared.v4, any sm
TESSERA_DEVICE uint4 load_shared(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}
TESSERA_DEVICE void store_shared_word(u32 address, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" :: "r"(address), "r"(x) : "memory");
}
TESSERA_DEVICE void store_shared(u32 address, uint2 x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" :: "r"(address), "r"(x.x), "r"(x.y) : "memory");
}
TESSERA_DEVICE void store_shared(u32 address, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

}  // namespace tessera
