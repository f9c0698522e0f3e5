// Lanes per clock and SM of single instructions and of mixes, by the SM's own clock: one block of 1024 threads a SM,
// eight independent chains a thread, each chain feeding from its neighbour so that nothing can be folded.
#pragma once
#include "common/bits.cuh"
#include "common/types.cuh"

namespace tessera::probe {

enum Op {
  kLop3, kShf, kPrmt, kImad, kImadHi, kIadd3, kHfma2, kFfma, kI2f, kEx2,
  kLop3Imad, kShfImad, kLop3Hfma2, kDequant, kDequantHi
};

constexpr int kChains = 8;

TESSERA_DEVICE u32 mad_hi(u32 a, u32 b, u32 c) {
  u32 d;
  asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// One step of a chain: x is its state, y its neighbour's, b and c are constant over the kernel.
template <int kOp>
TESSERA_DEVICE void step(u32& x, u32& y, u32 b, u32 c) {
  if constexpr (kOp == kLop3) x = lop3<0x96>(x, y, b);
  if constexpr (kOp == kShf) x = funnel_right(x, y, b);
  if constexpr (kOp == kPrmt) x = prmt(x, y, b);
  if constexpr (kOp == kImad) x = x * b + y;
  if constexpr (kOp == kImadHi) x = mad_hi(x, b, c);
  if constexpr (kOp == kIadd3) x = x + y + b;
  if constexpr (kOp == kHfma2) x = fma2<f16>(x, b, c);
  if constexpr (kOp == kFfma)
    x = __float_as_uint(__fmaf_rn(__uint_as_float(x), __uint_as_float(b), __uint_as_float(c)));
  if constexpr (kOp == kI2f) x = __float_as_uint(__int2float_rn(x));
  if constexpr (kOp == kEx2) x = __float_as_uint(exp2_approx(__uint_as_float(x)));
  if constexpr (kOp == kLop3Imad) x = lop3<0x96>(x, y, b), y = y * b + c;
  if constexpr (kOp == kShfImad) x = funnel_right(x, y, b), y = y * b + c;
  if constexpr (kOp == kLop3Hfma2) x = lop3<0x96>(x, y, b), y = fma2<f16>(y, b, c);
  if constexpr (kOp == kDequant) {  // 8 codes of x: AND, SHR, AND, two IMAD
    const u32 low = x & 0x0F0F0F0Fu, high = (x >> 4) & 0x0F0F0F0Fu;
    x = low * b + c, y = high * b + y;
  }
  if constexpr (kOp == kDequantHi) {  // the same without the shift, for steps below 16: b << 28
    const u32 low = x & 0x0F0F0F0Fu, high = x & 0xF0F0F0F0u;
    x = low * b + c, y = mad_hi(high, b << 28, y);
  }
}

// cycles [blocks], sink [blocks * 1024]. `start` fills the chains.
template <int kOp, int kUnroll>
__global__ void __launch_bounds__(1024, 1) rate(u64* cycles, u32* sink, u32 start, u32 b, u32 c, int iterations) {
  u32 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = start ^ ((threadIdx.x * kChains + i) & (kOp == kHfma2 ? 3 : ~0u));
  __syncthreads();
  const u64 begin = clock64();
#pragma unroll 1
  for (int k = 0; k < iterations; ++k) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kChains; ++i) step<kOp>(x[i], x[(i + 1) % kChains], b, c);
    }
  }
  __syncthreads();
  const u64 end = clock64();
  u32 sum = 0;
  for (int i = 0; i < kChains; ++i) sum ^= x[i];
  sink[blockIdx.x * 1024 + threadIdx.x] = sum;
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
}

}  // namespace tessera::probe
