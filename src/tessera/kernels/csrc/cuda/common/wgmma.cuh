// wgmma, sm_90a: D[64, N] += A[64, K] B[N, K]^T by one warpgroup (4 warps, the first a multiple of 4), asynchronously.
//
// Wgmma<A, N>::rs takes A from registers, ss from shared memory; B always comes from shared memory. A is f16 or bf16
// (B alike, float accumulators, K = 16) or u8 or i8 (B is i8, int accumulators, K = 32, K-major operands only).
// Warp w of the group owns rows 16 w ... 16 w + 15. In it, with g = lane / 4 and t = lane % 4:
//   a[0..3] as in mma.cuh;  d[4 j], d[4 j + 1]: row g, columns 8 j + 2 t and + 1;  d[4 j + 2], d[4 j + 3]: row g + 8
//
// Order of use: fence (registers and shared memory are ready), any number of wgmma, commit, wait<pending groups>.
// Until a group has been waited for, neither its accumulators nor its A registers may be touched: the compiler then
// orders them itself, which costs up to half of the rate, and compiling is refused. `keep` accumulators after a wait.
#pragma once
#include "common/types.cuh"

namespace tessera {

TESSERA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TESSERA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
TESSERA_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(kPending) : "memory"); }

// Keeps the compiler from moving reads or writes of these registers across this point.
template <class T, int N>
TESSERA_DEVICE void keep(T (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (is_same<T, float>::value) asm volatile("" : "+f"(x[i]) :: "memory");
    else asm volatile("" : "+r"(x[i]) :: "memory");
  }
}

// Where byte `offset` of a tile of 128-byte rows lies under the 128-byte swizzle: the 16-byte chunk is xor-ed with the
// row modulo 8. The tile starts at a multiple of 1024.
TESSERA_DEVICE u32 swizzle_128b(u32 offset) { return offset ^ ((offset >> 3) & 0x70); }

// Descriptor of an operand under the 128-byte swizzle; `smem` is a shared address.
//   K-major (rows of 128 bytes of K, 8 rows = 1024 bytes): the default strides; the next 32 bytes of K are at + 32.
//   MN-major, 16-bit elements (rows of 64 elements of M or N, one row per k): `stride` is from one 8 rows of k to the
//   next (1024 where they are adjacent), `leading` from one 64 elements of M or N to the next.
TESSERA_DEVICE u64 wgmma_descriptor(u32 smem, u32 stride = 1024, u32 leading = 16) {
  return static_cast<u64>((smem & 0x3ffff) >> 4) | static_cast<u64>(leading >> 4) << 16 |
         static_cast<u64>(stride >> 4) << 32 | 1ull << 62;
}
// The descriptor `bytes` (a multiple of 16) further on.
TESSERA_DEVICE u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

template <class A, int N>
struct Wgmma;

// Names of the first R operands, and the accumulators d[i] ... d[i + R - 1] as operands with constraint C.
#define TW_S4 "%0, %1, %2, %3"
#define TW_S8 TW_S4 ", %4, %5, %6, %7"
#define TW_S16 TW_S8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TW_S32 TW_S16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TW_S48 TW_S32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TW_S64 TW_S48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TW_S80 TW_S64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TW_S96 TW_S80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TW_S112 TW_S96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TW_S128 TW_S112 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TW_D4(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define TW_D8(C, i) TW_D4(C, i), TW_D4(C, i + 4)
#define TW_D16(C, i) TW_D8(C, i), TW_D8(C, i + 8)
#define TW_D32(C, i) TW_D16(C, i), TW_D16(C, i + 16)
#define TW_D48(C, i) TW_D32(C, i), TW_D16(C, i + 32)
#define TW_D64(C, i) TW_D32(C, i), TW_D32(C, i + 32)
#define TW_D96(C, i) TW_D64(C, i), TW_D32(C, i + 64)
#define TW_D128(C, i) TW_D64(C, i), TW_D64(C, i + 64)
#define TW_BEGIN(p) "{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\nwgmma.mma_async.sync.aligned.m64n"

// t0 ... t6 are the operands after the R accumulators.
#define TW_INTEGER(A, TYPES, N, R, t0, t1, t2, t3, t4, t5, t6)                                              \
  template <>                                                                                              \
  struct Wgmma<A, N> {                                                                                     \
    static constexpr int kK = 32;                                                                          \
    using Accumulator = i32;                                                                               \
    static TESSERA_DEVICE void rs(i32 (&d)[R], const u32 (&a)[4], u64 b, bool accumulate = true) {         \
      asm volatile(TW_BEGIN(t5) #N TYPES " {" TW_S##R "}, {" t0 ", " t1 ", " t2 ", " t3 "}, " t4 ", p;\n}" \
                   : TW_D##R("+r", 0)                                                                      \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));            \
    }                                                                                                      \
    static TESSERA_DEVICE void ss(i32 (&d)[R], u64 a, u64 b, bool accumulate = true) {                     \
      asm volatile(TW_BEGIN(t2) #N TYPES " {" TW_S##R "}, " t0 ", " t1 ", p;\n}"                           \
                   : TW_D##R("+r", 0)                                                                      \
                   : "l"(a), "l"(b), "r"(int(accumulate)));                                                \
    }                                                                                                      \
  };
// kTransposeB = 1: B lies MN-major.
#define TW_FLOAT(A, TYPES, N, R, t0, t1, t2, t3, t4, t5, t6)                                              \
  template <>                                                                                            \
  struct Wgmma<A, N> {                                                                                   \
    static constexpr int kK = 16;                                                                        \
    using Accumulator = float;                                                                           \
    template <int kTransposeB = 0>                                                                       \
    static TESSERA_DEVICE void rs(float (&d)[R], const u32 (&a)[4], u64 b, bool accumulate = true) {     \
      asm volatile(TW_BEGIN(t5) #N TYPES " {" TW_S##R "}, {" t0 ", " t1 ", " t2 ", " t3 "}, " t4         \
                                         ", p, 1, 1, " t6 ";\n}"                                         \
                   : TW_D##R("+f", 0)                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)),           \
                     "n"(kTransposeB));                                                                  \
    }                                                                                                    \
    template <int kTransposeB = 0>                                                                       \
    static TESSERA_DEVICE void ss(float (&d)[R], u64 a, u64 b, bool accumulate = true) {                 \
      asm volatile(TW_BEGIN(t2) #N TYPES " {" TW_S##R "}, " t0 ", " t1 ", p, 1, 1, 0, " t3 ";\n}"        \
                   : TW_D##R("+f", 0)                                                                    \
                   : "l"(a), "l"(b), "r"(int(accumulate)), "n"(kTransposeB));                            \
    }                                                                                                    \
  };
#define TW_ALL_N(DEFINE, A, TYPES)                                                        \
  DEFINE(A, TYPES, 8, 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10")                       \
  DEFINE(A, TYPES, 16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")                  \
  DEFINE(A, TYPES, 32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")               \
  DEFINE(A, TYPES, 64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")               \
  DEFINE(A, TYPES, 96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")               \
  DEFINE(A, TYPES, 128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")              \
  DEFINE(A, TYPES, 192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")           \
  DEFINE(A, TYPES, 256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

TW_ALL_N(TW_INTEGER, u8, "k32.s32.u8.s8")
TW_ALL_N(TW_INTEGER, i8, "k32.s32.s8.s8")
TW_ALL_N(TW_FLOAT, f16, "k16.f32.f16.f16")
TW_ALL_N(TW_FLOAT, bf16, "k16.f32.bf16.bf16")

#undef TW_S4
#undef TW_S8
#undef TW_S16
#undef TW_S32
#undef TW_S48
#undef TW_S64
#undef TW_S80
#undef TW_S96
#undef TW_S112
#undef TW_S128
#undef TW_D4
#undef TW_D8
#undef TW_D16
#undef TW_D32
#undef TW_D48
#undef TW_D64
#undef TW_D96
#undef TW_D128
#undef TW_BEGIN
#undef TW_INTEGER
#undef TW_FLOAT
#undef TW_ALL_N

}  // namespace tessera
