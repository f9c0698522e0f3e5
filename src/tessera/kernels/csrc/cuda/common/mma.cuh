// mma.sync, sm_80: D[16, 8] += A[16, K] B[8, K]^T by one warp, A and B with K contiguous.
// With g = lane / 4, t = lane % 4 and e the elements of a 32-bit word (2 of 16 bits, 4 of 8 bits; W = e):
//   a[0], a[2]: row g,     K from W t and from K/2 + W t        d[0], d[1]: row g,     columns 2t, 2t + 1
//   a[1], a[3]: row g + 8, the same                             d[2], d[3]: row g + 8, the same
//   b[0], b[1]: column g,  K from W t and from K/2 + W t
#pragma once
#include "common/types.cuh"

namespace tessera {

// m16n8k16.row.col.f32.{f16,bf16}
template <class T>
TESSERA_DEVICE void mma_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (is_same<T, f16>::value) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(is_same<T, bf16>::value, "f16 or bf16");
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// m16n8k32.row.col.s32.{u8,s8}.s8. A is u8 or i8.
template <class A>
TESSERA_DEVICE void mma_16832(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (is_same<A, u8>::value) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(is_same<A, i8>::value, "u8 or i8");
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

}  // namespace tessera
