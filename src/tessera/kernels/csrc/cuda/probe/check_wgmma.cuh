// One-warpgroup kernel that runs wgmma over 128 bytes of K; compared with torch by `tests/kernels/cuda`.
#pragma once
#include "common/bulk.cuh"
#include "common/wgmma.cuh"

namespace tessera::check {

// a [64, 128 bytes], d [64, N] of 32-bit words. b [N, 128 bytes], or [64, N] of 16 bits where kTransposeB (N a
// multiple of 64). A from registers where kRegisters, else from shared memory. 128 threads.
template <class A, int N, bool kRegisters, bool kTransposeB>
__global__ void __launch_bounds__(128, 1) wgmma(const u32* a, const u32* b, u32* d) {
  constexpr int kWords = 32;  // 128 bytes
  using Mma = Wgmma<A, N>;
  extern __shared__ __align__(1024) u8 smem[];  // A 8 KB, then B
  u8* smem_b = smem + 64 * 128;
  for (int i = threadIdx.x; i < 64 * kWords; i += 128) reinterpret_cast<u32*>(smem)[swizzle_128b(i * 4) / 4] = a[i];
  for (int i = threadIdx.x; i < N * kWords; i += 128) {
    if constexpr (kTransposeB) {
      // word i: row k, elements 2 (i mod N/2); 64 elements of N make a block of 64 rows of 128 bytes
      const int k = i / (N / 2), n = i % (N / 2) * 2;
      const int offset = n / 64 * 8192 + k * 128 + n % 64 * 2;
      reinterpret_cast<u32*>(smem_b)[swizzle_128b(offset) / 4] = b[i];
    } else {
      reinterpret_cast<u32*>(smem_b)[swizzle_128b(i * 4) / 4] = b[i];
    }
  }
  fence_async();
  __syncthreads();

  const int warp = threadIdx.x / kWarp, lane = lane_id(), g = lane / 4, t = lane % 4;
  u32 fa[4][4];
  for (int s = 0; s < 4; ++s) {
    for (int i = 0; i < 4; ++i) fa[s][i] = a[(16 * warp + g + i % 2 * 8) * kWords + s * 8 + t + i / 2 * 4];
  }
  const u64 desc_a = wgmma_descriptor(smem_address(smem));
  const u64 desc_b = kTransposeB ? wgmma_descriptor(smem_address(smem_b), 1024, 8192)
                                 : wgmma_descriptor(smem_address(smem_b));
  constexpr u32 kStepB = kTransposeB ? 2048 : 32;  // 16 rows of k, or 32 bytes of K
  typename Mma::Accumulator acc[N / 2];
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const u64 step_b = wgmma_advance(desc_b, s * kStepB);
    if constexpr (kTransposeB && kRegisters) Mma::template rs<1>(acc, fa[s], step_b, s > 0);
    else if constexpr (kTransposeB) Mma::template ss<1>(acc, wgmma_advance(desc_a, s * 32), step_b, s > 0);
    else if constexpr (kRegisters) Mma::rs(acc, fa[s], step_b, s > 0);
    else Mma::ss(acc, wgmma_advance(desc_a, s * 32), step_b, s > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  keep(acc);
  for (int j = 0; j < N / 8; ++j) {
    for (int i = 0; i < 4; ++i) {
      u32 word;
      if constexpr (sizeof(A) == 2) word = __float_as_uint(acc[4 * j + i]);
      else word = acc[4 * j + i];
      d[(16 * warp + g + i / 2 * 8) * N + 8 * j + 2 * t + i % 2] = word;
    }
  }
}

}  // namespace tessera::check
