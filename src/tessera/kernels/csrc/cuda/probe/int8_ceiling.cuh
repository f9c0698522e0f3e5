// What the SM can do with int8 wgmma when everything is on chip: some warpgroups, A from registers, B in shared memory,
// K = 128 a step; bare, or with 4-bit weights unpacked between the instructions.
#pragma once
#include "common/bits.cuh"
#include "common/bulk.cuh"
#include "common/wgmma.cuh"

namespace tessera::probe {

enum Dequant { kBare, kOneScale, kGroupScales };

// Eight codes to two A words: q * s + offset in every byte lane, modulo 2^32; exact while each lane stays in 0..255.
TESSERA_DEVICE void dequantize(u32& low, u32& high, u32 codes, u32 scale, u32 offset) {
  low = (codes & 0x0F0F0F0Fu) * scale + offset;
  high = ((codes >> 4) & 0x0F0F0F0Fu) * scale + offset;
}

// seed [16384] random words; sink [blocks * threads]; cycles [blocks] of the SM's clock. 128 threads a warpgroup,
// 96 KB of dynamic shared memory: B 32 KB, weights 64 KB.
template <int N, int kMode, int kWarpgroups>
__global__ void __launch_bounds__(128 * kWarpgroups, 1)
    int8_ceiling(const u32* seed, i32* sink, u64* cycles, u32 scale, u32 offset, int steps) {
  extern __shared__ __align__(1024) u8 smem[];
  u32* words = reinterpret_cast<u32*>(smem);
  for (int i = threadIdx.x; i < 24576; i += blockDim.x) words[i] = seed[i & 16383] + i / 16384 * 0x9E3779B9u;
  fence_async();
  __syncthreads();
  const u64 desc = wgmma_descriptor(smem_address(smem));
  const u32 weights = smem_address(smem) + 32768 + threadIdx.x % 256 * 16;
  using Mma = Wgmma<u8, N>;
  i32 acc[N / 2] = {};
  u32 a[4][4];
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 4; ++i) a[j][i] = seed[threadIdx.x * 16 + j * 4 + i];
  }
  const u64 begin = clock64();
#pragma unroll 1
  for (int k = 0; k < steps; ++k) {
    if constexpr (kMode == kBare) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) Mma::rs(acc, a[j], wgmma_advance(desc, 32 * j));
      wgmma_commit();
      wgmma_wait<0>();
    } else {
      u32 s0 = scale, s1 = scale, o0 = offset, o1 = offset;
      if constexpr (kMode == kGroupScales) {  // one word of parameters for the two rows of a thread
        const u32 p = words[8192 + (k & 63) * 256 + threadIdx.x % 256];
        s0 = p & 15, o0 = broadcast_byte<1>(p), s1 = (p >> 16) & 15, o1 = broadcast_byte<3>(p);
      }
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const uint4 w = load_shared(weights + ((k * 2 + j / 2) & 15) * 4096);
        dequantize(a[j][0], a[j][2], w.x, s0, o0), dequantize(a[j][1], a[j][3], w.y, s1, o1);
        wgmma_fence();
        Mma::rs(acc, a[j], wgmma_advance(desc, 32 * j));
        wgmma_commit();
        wgmma_wait<1>();
        dequantize(a[j + 1][0], a[j + 1][2], w.z, s0, o0), dequantize(a[j + 1][1], a[j + 1][3], w.w, s1, o1);
        wgmma_fence();
        Mma::rs(acc, a[j + 1], wgmma_advance(desc, 32 * j + 32));
        wgmma_commit();
        wgmma_wait<1>();
      }
    }
  }
  wgmma_wait<0>();
  keep(acc);
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
  i32 sum = 0;
  for (int i = 0; i < N / 2; ++i) sum ^= acc[i];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

}  // namespace tessera::probe
