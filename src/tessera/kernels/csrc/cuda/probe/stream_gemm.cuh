// The W4A8 (and, with Bytes, W8A8) data flow on trial: y[m, n] = bf16((sum_k x[m, k] w[n, k] - offset[n] rowsum[m]) *
// s_n[n] * s_m[m]) with 4-bit weights streamed from global memory by bulk copies, unpacked in registers and fed to wgmma as
// operand A.
// A probe: whole tiles only and no split of K, so that the number is the main loop's and the epilogue's.
#pragma once
#include "common/bits.cuh"
#include "common/bulk.cuh"
#include "common/matrix.cuh"
#include "common/mbarrier.cuh"
#include "common/sync.cuh"
#include "common/wgmma.cuh"
#include "probe/dequant_ways.cuh"

namespace tessera::probe {

// kTokens: rows of x a tile; kConsumers: warpgroups that multiply, with kRowTiles tiles of 64 rows each; Way: from
// codes to operands (dequant_ways.cuh); kCluster: blocks that share a tile of x by multicast. kOnce leaves work out
// to see what it costs: bit 0 loads x, bit 1 the weights, only in the first turn of the ring; bit 2 unpacks no weights.
template <int kTokens_, int kConsumers_, int kRowTiles_, int kStages_, class Way_, int kCluster_, int kOnce_>
struct StreamConfig {
  static constexpr int kTokens = kTokens_, kRowTiles = kRowTiles_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kOnce = kOnce_;
  using Way = Way_;
  static constexpr int kConsumers = kConsumers_, kThreads = kWarpgroup * (1 + kConsumers);
  // What the block was launched with, dealt anew: 168 x 384, 128 x 512 or 96 x 640 registers.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;
  static constexpr int kTiles = kConsumers * kRowTiles;  // weight tiles a block and step
  static constexpr int kActivationBytes = kTokens * 128;
  static constexpr int kTileBytes = Way::kTileBytes;
  static constexpr int kWeightBytes = kTiles * kTileBytes;
  static constexpr int kStageBytes = kActivationBytes + kWeightBytes;
  static constexpr int kOutputBytes = 2 * 32 * 128;  // two buffers of 32 tokens x 64 rows of bf16
  static constexpr int kEpilogueBytes = kOutputBytes + kTokens * 8;  // a warpgroup: those, token sums, token scales
  static constexpr int kSmem = kStages * kStageBytes + kConsumers * kEpilogueBytes;
};

struct StreamArgs {
  const u8* weights;      // [n / 64][k / 128][C::kTileBytes]
  const u8* activations;  // [m / kTokens][k / 128][kTokens][128], 128-byte swizzle
  const i32* offsets;     // [n]
  const float* row_scale;  // [n]
  const i32* token_sum;    // [m]
  const float* token_scale;  // [m]
  bf16* y;                   // [m, n]
  u64* cycles;               // [blocks] of the SM's clock, by the first consumer
  int m_tiles, n, steps;     // n: rows of w; steps: k / 128
};

template <class C>
struct StreamSmem {
  u32 base, full, empty;
  TESSERA_DEVICE u32 activations(int s) const { return base + s * C::kActivationBytes; }
  TESSERA_DEVICE u32 weights(int s) const { return base + C::kStages * C::kActivationBytes + s * C::kWeightBytes; }
  TESSERA_DEVICE u32 epilogue(int consumer) const {
    return base + C::kStages * C::kStageBytes + consumer * C::kEpilogueBytes;
  }
};

struct Ring {
  int stage = 0;
  u32 parity = 0;
  template <int kStages>
  TESSERA_DEVICE void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Tiles of this cluster in turn, tokens fastest: neighbours in time share weights through L2.
template <class C, class F>
TESSERA_DEVICE void for_each_tile(const StreamArgs& p, F f) {
  const int cluster = blockIdx.x / C::kCluster, clusters = gridDim.x / C::kCluster;
  const int panels = p.n / (64 * C::kTiles * C::kCluster);
  for (int i = cluster; i < panels * p.m_tiles; i += clusters) {
    f(i % p.m_tiles, i / p.m_tiles * C::kCluster + blockIdx.x % C::kCluster);
  }
}

template <class C>
TESSERA_DEVICE void stream_produce(const StreamArgs& p, const StreamSmem<C>& smem) {
  Ring ring;
  int turn = 0;
  const u32 rank = C::kCluster > 1 ? cluster_rank() : 0;
  constexpr int kPart = C::kActivationBytes / C::kCluster;
  for_each_tile<C>(p, [&](int token_tile, int panel) {
    const u8* w = p.weights + static_cast<i64>(panel) * C::kTiles * p.steps * C::kTileBytes;
    const u8* x = p.activations + static_cast<i64>(token_tile) * p.steps * C::kActivationBytes + rank * kPart;
    for (int k = 0; k < p.steps; ++k) {
      mbarrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
      const u32 full = smem.full + ring.stage * 8;
      const bool with_x = !(C::kOnce & 1) || turn < C::kStages, with_w = !(C::kOnce & 2) || turn < C::kStages;
      ++turn;
      mbarrier_arrive_expect(full, with_x * C::kActivationBytes + with_w * C::kWeightBytes);
#pragma unroll
      for (int i = 0; with_w && i < C::kTiles; ++i) {
        bulk_load(smem.weights(ring.stage) + i * C::kTileBytes, w + (static_cast<i64>(i) * p.steps + k) * C::kTileBytes,
                  C::kTileBytes, full);
      }
      const u32 to = smem.activations(ring.stage) + rank * kPart;
      if (with_x) {
        const u8* from = x + static_cast<i64>(k) * C::kActivationBytes;
        if constexpr (C::kCluster > 1) bulk_load_multicast(to, from, kPart, full, (1 << C::kCluster) - 1);
        else bulk_load(to, from, kPart, full);
      }
      ring.template next<C::kStages>();
    }
  });
}

// A thread's share of one 64 x 128 tile: 64 codes, and one word of parameters for its two rows.
struct Packed {
  uint4 codes[2];
  u32 parameters;
};

// Codes in row order, [64 rows][64 bytes], two columns a byte: a fragment's four columns are two bytes.
TESSERA_DEVICE u32 load_scattered(u32 tile, int row, int step, int t) {
  u32 lo, hi;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(lo) : "r"(tile + row * 64 + step * 16 + 2 * t));
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(hi) : "r"(tile + row * 64 + step * 16 + 8 + 2 * t));
  // Columns 0 ... 3 to the low nibbles of four bytes, 16 ... 19 to the high ones.
  const auto spread = [](u32 x) { return prmt(x & 0x0F0Fu, (x >> 4) & 0x0F0Fu, 0x5140); };
  return spread(lo) | spread(hi) << 4;
}

template <class Way>
TESSERA_DEVICE Packed load_packed(u32 tile, int thread) {
  Packed w;
  if constexpr (Way::kRowMajor) {
    const int row = thread / kWarp * 16 + thread % kWarp / 4, t = thread % 4;
    u32 x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = load_scattered(tile, row + i % 2 * 8, i / 2, t);
    w.codes[0] = make_uint4(x[0], x[1], x[2], x[3]), w.codes[1] = make_uint4(x[4], x[5], x[6], x[7]);
  } else {
    w.codes[0] = load_shared(tile + thread * 16), w.codes[1] = load_shared(tile + 2048 + thread * 16);
  }
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w.parameters) : "r"(tile + 4096 + thread / 4 * 4));
  return w;
}

// Sums of one group, scaled, onto those of the groups before it; the rows' scales are bytes 0 and 2 of `parameters`.
template <int N>
TESSERA_DEVICE void add_group(float (&total)[N], const i32 (&acc)[N], u32 parameters) {
  const float s0 = static_cast<float>(parameters & 0xff), s1 = static_cast<float>((parameters >> 16) & 0xff);
#pragma unroll
  for (int i = 0; i < N; ++i) total[i] += static_cast<float>(acc[i]) * (i % 4 < 2 ? s0 : s1);
}

template <class C>
TESSERA_DEVICE void release_stage(const StreamSmem<C>& smem, int stage) {
  if constexpr (C::kCluster > 1) {
    if (lane_id() < C::kCluster) mbarrier_arrive_remote(smem.empty + stage * 8, lane_id());
  } else {
    if (lane_id() == 0) mbarrier_arrive(smem.empty + stage * 8);
  }
}

// What the epilogue needs of a thread's two rows, fetched before the main loop so that its latency is hidden there.
struct RowParameters {
  i32 offset[2];
  float scale[2];
};

TESSERA_DEVICE RowParameters load_rows(const StreamArgs& p, int n) {
  return {{p.offsets[n], p.offsets[n + 8]}, {p.row_scale[n], p.row_scale[n + 8]}};
}

// Sums and scales of a tile's tokens into shared memory, likewise ahead of time; no one may still read the last ones.
template <class C>
TESSERA_DEVICE void stage_tokens(const StreamArgs& p, u32 to, int token_tile, int thread) {
  for (int i = thread; i < C::kTokens; i += kWarpgroup) {
    const int m = token_tile * C::kTokens + i;
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(to + i * 4), "r"(p.token_sum[m]) : "memory");
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(to + C::kTokens * 4 + i * 4), "f"(p.token_scale[m]) : "memory");
  }
}

TESSERA_DEVICE uint2 load_pair(u32 address) {
  uint2 x;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}

template <class C, class Sum>
TESSERA_DEVICE void stream_epilogue(const StreamArgs& p, const StreamSmem<C>& smem, int consumer, int token_tile,
                                    int row, const RowParameters& rows, const Sum (&acc)[C::kTokens / 2]) {
  const int thread = threadIdx.x % kWarpgroup, warp = thread / kWarp, lane = lane_id(), t = lane % 4;
  const int m = token_tile * C::kTokens;
  const u32 tokens = smem.epilogue(consumer) + C::kOutputBytes;
#pragma unroll
  for (int chunk = 0; chunk < C::kTokens / 32; ++chunk) {
    const u32 buffer = smem.epilogue(consumer) + chunk % 2 * 4096;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {  // 16 tokens: two 8 x 8 matrices for each half of the rows
      u32 f[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = chunk * 4 + pair * 2 + i / 2, half = i % 2, token = 8 * j + 2 * t;
        const uint2 sum = load_pair(tokens + token * 4), ts = load_pair(tokens + C::kTokens * 4 + token * 4);
        const Sum first = acc[4 * j + 2 * half] - static_cast<Sum>(rows.offset[half] * static_cast<i32>(sum.x));
        const Sum second = acc[4 * j + 2 * half + 1] - static_cast<Sum>(rows.offset[half] * static_cast<i32>(sum.y));
        f[i] = pack2<bf16>(static_cast<float>(first) * (rows.scale[half] * __uint_as_float(ts.x)),
                           static_cast<float>(second) * (rows.scale[half] * __uint_as_float(ts.y)));
      }
      const int token = pair * 16 + lane / 16 * 8 + lane % 8;
      stmatrix_trans(buffer + swizzle_128b(token * 128 + 32 * warp + lane / 8 % 2 * 16), f);
    }
    named_barrier_sync(1 + consumer, kWarpgroup);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = i * 16 + thread / 8, column = thread % 8;
      const uint4 v = load_shared(buffer + swizzle_128b(token * 128 + column * 16));
      *reinterpret_cast<uint4*>(p.y + static_cast<i64>(m + chunk * 32 + token) * p.n + row + column * 8) = v;
    }
  }
  // The buffers alternate; after an odd number the next 64 rows start with the one that was just read.
  if constexpr (C::kTokens / 32 % 2) named_barrier_sync(1 + consumer, kWarpgroup);
}

template <class C>
TESSERA_DEVICE void stream_consume(const StreamArgs& p, const StreamSmem<C>& smem, int consumer) {
  using Way = typename C::Way;
  using Mma = Wgmma<typename Way::A, C::kTokens>;
  Ring ring;
  const int thread = threadIdx.x % kWarpgroup;
  for_each_tile<C>(p, [&](int token_tile, int panel) {
    i32 acc[C::kRowTiles][C::kTokens / 2];
    float total[C::kRowTiles][Way::kPartial ? C::kTokens / 2 : 1] = {};
    u32 a[4][4];
    RowParameters rows[C::kRowTiles];
    named_barrier_sync(1 + consumer, kWarpgroup);
    stage_tokens<C>(p, smem.epilogue(consumer) + C::kOutputBytes, token_tile, thread);
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      const int row = (panel * C::kTiles + consumer * C::kRowTiles + r) * 64;
      rows[r] = load_rows(p, row + thread / kWarp * 16 + lane_id() / 4);
    }
    Packed now[C::kRowTiles], next[C::kRowTiles];
    const auto fetch = [&](Packed(&w)[C::kRowTiles], const Ring& at) {
      mbarrier_wait(smem.full + at.stage * 8, at.parity);
#pragma unroll
      for (int r = 0; !Way::kShared && r < C::kRowTiles; ++r) {
        w[r] = load_packed<Way>(smem.weights(at.stage) + (consumer * C::kRowTiles + r) * C::kTileBytes, thread);
      }
    };
    fetch(now, ring);
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < p.steps; ++k) {
      const u64 desc = wgmma_descriptor(smem.activations(ring.stage));
      Ring after = ring;
      after.template next<C::kStages>();
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const bool accumulate = (!Way::kPartial && k > 0) || j > 0;
          if constexpr (Way::kShared) {
            const u32 tile = smem.weights(ring.stage) + (consumer * C::kRowTiles + r) * C::kTileBytes;
            wgmma_fence();
            Mma::ss(acc[r], wgmma_advance(wgmma_descriptor(tile), 32 * j), wgmma_advance(desc, 32 * j), accumulate);
          } else {
            if (!(C::kOnce & 4) || k == 0) unpack_step<Way>(a[j], now[r].codes, j, now[r].parameters);
            wgmma_fence();
            Mma::rs(acc[r], a[j], wgmma_advance(desc, 32 * j), accumulate);
          }
          wgmma_commit();
          // With two pending the assembler no longer proves that a[j] is free, and serialises.
          wgmma_wait<1>();
          // Everything but the newest wgmma has retired, so the step before this one is read to its end.
          if (r == 0 && j == 0 && previous >= 0) release_stage<C>(smem, previous);
          if (r == C::kRowTiles - 1 && j == 1 && k + 1 < p.steps) fetch(next, after);
        }
        if constexpr (Way::kPartial) {
          wgmma_wait<0>();
          keep(acc[r]);
          add_group(total[r], acc[r], now[r].parameters);
        }
      }
      previous = ring.stage;
      ring = after;
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) now[r] = next[r];
    }
    wgmma_wait<0>();
    release_stage<C>(smem, previous);
    named_barrier_sync(1 + consumer, kWarpgroup);
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      if constexpr (!Way::kPartial) keep(acc[r]);
      const int row = (panel * C::kTiles + consumer * C::kRowTiles + r) * 64;
      if constexpr (Way::kPartial) stream_epilogue<C>(p, smem, consumer, token_tile, row, rows[r], total[r]);
      else stream_epilogue<C>(p, smem, consumer, token_tile, row, rows[r], acc[r]);
    }
  });
}

// kThreads threads: warpgroup 0 produces, the others consume. One block a SM; the grid is a multiple of kCluster.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    stream_gemm(const u8* weights, const u8* activations, const i32* offsets, const float* row_scale,
                const i32* token_sum, const float* token_scale, bf16* y, u64* cycles, int m_tiles,
                int n, int steps) {
  extern __shared__ __align__(1024) u8 dynamic[];
  __shared__ u64 barriers[2 * C::kStages];
  const StreamArgs p{weights, activations, offsets, row_scale, token_sum, token_scale, y, cycles,
                     m_tiles, n, steps};
  const StreamSmem<C> smem{smem_address(dynamic), smem_address(barriers), smem_address(barriers + C::kStages)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(smem.full + s * 8, 1);
      mbarrier_init(smem.empty + s * 8, 4 * C::kConsumers * C::kCluster);
    }
    fence_barrier_init();
  }
  if constexpr (C::kCluster > 1) cluster_sync();
  else __syncthreads();
  const int group = warp_id() / 4;
  if (group == 0) {
    registers_shrink<C::kProducerRegisters>();
    if (threadIdx.x == 0) stream_produce<C>(p, smem);
  } else {
    registers_grow<C::kConsumerRegisters>();
    const u64 begin = clock64();
    stream_consume<C>(p, smem, group - 1);
    if (threadIdx.x == kWarpgroup) cycles[blockIdx.x] = clock64() - begin;
  }
  if constexpr (C::kCluster > 1) cluster_sync();
}

}  // namespace tessera::probe
