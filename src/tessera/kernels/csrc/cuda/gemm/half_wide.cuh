// y[t, n] = sum_k (q[n, k] - z) s x[t, k] + bias[n] for many tokens: 4-bit weights, 16-bit activations, wgmma (sm_90a).
//
// Weights are operand A, made of codes in registers: (magic + q) - (magic + z) is exact, and times the scale rounded
// once to the type of x (a scale per row is left to the epilogue, and nothing is rounded). One thread brings weights by
// bulk copies, before the kernel ahead has ended, and boxes of x under the 128-byte swizzle. Consumer warpgroups own 64
// rows each and meet nowhere but in the ring, so that one stores while the others multiply.
#pragma once
#include "common/matrix.cuh"
#include "common/ring.cuh"
#include "common/wgmma.cuh"
#include "elementwise/dependency.cuh"
#include "gemm/half.cuh"

namespace tessera::half {

// An output tile is kTokens tokens by kConsumers (2 or 4) warpgroups of 64 rows.
template <class T_, int kGroup, int kTokens_, int kConsumers_, int kStages_>
struct Wide {
  using T = T_;
  using Format = Int4<kGroup>;
  static constexpr int kTokens = kTokens_, kConsumers = kConsumers_, kStages = kStages_, kRows = 64 * kConsumers;
  // Small blocks share their SM with another, or with the next kernel's.
  static constexpr int kBlocks = kConsumers == 2 && kTokens <= 64 ? 2 : 1, kProducers = kBlocks == 2 ? 1 : 4;
  static constexpr int kThreads = kWarpgroup * kConsumers + kWarp * kProducers;
  // What the block was launched with, dealt anew: 168 x 384 or 96 x 640 registers.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32, kConsumerRegisters = kConsumers == 2 ? 232 : 112;
  // Operands are made for two products at a time, or for one: measured, what is faster changes with the tokens.
  static constexpr bool kPairs = kTokens <= 64;
  static constexpr int kTokenBytes = kTokens * kColumns * 2, kWeightBytes = kConsumers * Format::kBytes;
  static constexpr int kOutputBytes = 1024;  // a warp: 32 tokens x 16 rows of y
  static constexpr int kSmem = kStages * (kTokenBytes + kWeightBytes) + 4 * kConsumers * kOutputBytes;
  static_assert(kConsumers % 2 == 0, "weight tiles have 128 rows");
};

struct WideArgs {
  const u8* weights;  // [ceil(n / 128)][steps][2][Format::kBytes]
  const float* row;   // [2][128 ceil(n / 128)]: scales and zero points of rows without groups
  const void* bias;   // [n] of T, or null
  void* y;            // [tokens, n] of T
  float* parts;       // [2 grid][4 kConsumers][kTokens / 8][32][4]
  u32* arrived;       // [split tiles][4 kConsumers], zero between launches
  int tokens, n, k;
  Work work;
  // Token tiles are counted fastest, so that neighbours in time share weights.
  template <class C>
  TESSERA_DEVICE int token(int tile) const { return tile % div_up(tokens, C::kTokens) * C::kTokens; }
  template <class C>
  TESSERA_DEVICE int row_of(int tile) const { return tile / div_up(tokens, C::kTokens) * C::kRows; }
};

template <class C>
struct WideSmem {
  u32 base, full, empty;
  TESSERA_DEVICE u32 x(int stage) const { return base + stage * C::kTokenBytes; }
  TESSERA_DEVICE u32 weights(int stage) const { return x(C::kStages) + stage * C::kWeightBytes; }
  TESSERA_DEVICE u32 output(int warp) const { return weights(C::kStages) + warp * C::kOutputBytes; }
};

// One thread.
template <class C>
class WideProducer {
 public:
  TESSERA_DEVICE WideProducer(const WideArgs& p, const TensorMap& map, const WideSmem<C>& smem)
      : p_(p), map_(map), smem_(smem) {}

  TESSERA_DEVICE void run() {
    int ahead = 0;
    each_step([&](int, int stage, u32, const u8* weights) {
      bring_weights(stage, weights);
      return ++ahead < C::kStages;
    });
    await_predecessor();
    int done = 0;
    each_step([&](int step, int stage, u32 phase, const u8* weights) {
      if (done++ >= ahead) {
        mbarrier_wait(smem_.empty + stage * 8, phase ^ 1);
        bring_weights(stage, weights);
      }
      const u32 to = smem_.x(stage), full = smem_.full + stage * 8;
      tensor_load(to, map_, step * kColumns, token_, full);
      tensor_load(to + C::kTokenBytes / 2, map_, step * kColumns + kColumns / 2, token_, full);
      return true;
    });
  }

 private:
  static constexpr int kTile = 2 * C::Format::kBytes;

  template <class F>
  TESSERA_DEVICE void each_step(F f) {
    Share share(p_.work);
    RingPosition<C::kStages> at;
    for (Segment s; share.next(p_.work, s);) {
      const int tile = p_.row_of<C>(s.tile) / 128;
      token_ = p_.token<C>(s.tile), tiles_ = min(C::kConsumers / 2, div_up(p_.n, 128) - tile);
      const u8* weights = p_.weights + (static_cast<i64>(tile) * p_.work.steps + s.first) * kTile;
#pragma unroll 1
      for (int step = s.first; step < s.last; ++step, at.step(), weights += kTile) {
        if (!f(step, at.stage, at.phase, weights)) return;
      }
    }
  }

  // A block's last 128 rows may not exist.
  TESSERA_DEVICE void bring_weights(int stage, const u8* from) {
    const u32 full = smem_.full + stage * 8;
    mbarrier_arrive_expect(full, tiles_ * kTile + C::kTokenBytes);
    for (int i = 0; i < tiles_; ++i)
      bulk_load(smem_.weights(stage) + i * kTile, from + static_cast<i64>(i) * p_.work.steps * kTile, kTile, full);
  }

  const WideArgs& p_;
  const TensorMap& map_;
  const WideSmem<C>& smem_;
  int token_ = 0, tiles_ = 0;
};

// What turns codes of a thread's two rows into operands.
template <class T, bool kScaled>
struct Operands {
  u32 low[2], high[2], scale[2];

  TESSERA_DEVICE explicit Operands(const RowPair& p) {
    const u32 zero[2] = {p.zeros & 15, p.zeros >> 4};
#pragma unroll
    for (int r = 0; r < 2; ++r) low[r] = negative_magic<T, false>(zero[r]), high[r] = negative_magic<T, true>(zero[r]);
    if constexpr (is_same<T, f16>::value) {
      scale[0] = prmt(p.scales, 0, 0x1010), scale[1] = prmt(p.scales, 0, 0x3232);
    } else {
      const float2 s = unpack2<f16>(p.scales);
      scale[0] = pack2<T>(s.x, s.x), scale[1] = pack2<T>(s.y, s.y);
    }
  }

  // Operand A of one k = 16 step, out of the words of both rows.
  template <bool kHigh>
  TESSERA_DEVICE void make(u32 (&a)[4], const u32 (&words)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2;
      a[i] = add2<T>(magic<T, kHigh>(words[r] >> i / 2 * 8), kHigh ? high[r] : low[r]);
      if constexpr (kScaled) a[i] = mul2<T>(a[i], scale[r]);
    }
  }
};

// Eight neighbouring rows of one token.
template <class T>
TESSERA_DEVICE void store_eight(T* y, int row, int n, uint4 v) {
  if (n % 8 == 0) {
    if (row < n) *reinterpret_cast<uint4*>(y + row) = v;
    return;
  }
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (row + i < n) y[row + i].bits = static_cast<u16>(words[i / 2] >> 16 * (i % 2));
  }
}

template <class C>
class WideConsumer {
 public:
  using T = typename C::T;
  using Format = typename C::Format;
  using Sums = float[C::kTokens / 2];

  TESSERA_DEVICE WideConsumer(const WideArgs& p, const WideSmem<C>& smem, int index)
      : p_(p), smem_(smem), index_(index) {}

  TESSERA_DEVICE void run() {
    await_predecessor();
    Share share(p_.work);
    for (Segment s; share.next(p_.work, s);) {
      Sums acc;
      RowPair whole{};
      if constexpr (!Format::kGroup) {
        const int rows = round_up(p_.n, 128), row = p_.row_of<C>(s.tile) + threadIdx.x / kWarp * 16 + lane_id() / 4;
        const float* zero = p_.row + rows + min(row, rows - 9);  // a tile may end half empty
        whole = whole_row(zero[0], zero[8]);
      }
      multiply(s.last - s.first, acc, whole);
      keep(acc);
      if (combine(s, acc)) store(s, acc);
    }
  }

 private:
  TESSERA_DEVICE void release(int stage) {
    __syncwarp();
    if (kArrivals > 1 || lane_id() == 0) mbarrier_arrive(smem_.empty + stage * 8);
  }

  TESSERA_DEVICE void multiply(int steps, Sums& acc, const RowPair& whole) {
    using Mma = Wgmma<T, C::kTokens>;
    const int thread = threadIdx.x % kWarpgroup;
    const auto tile = [&](int stage) { return smem_.weights(stage) + index_ * Format::kBytes; };
    const auto group = [&](int stage, int i) {
      if constexpr (Format::kGroup) return load_pair<Format>(tile(stage), i, thread / kWarp);
      else return whole;
    };
    u32 a[C::kPairs ? 2 : 1][2][4];
    mbarrier_wait(smem_.full + at_.stage * 8, at_.phase);
    uint4 next = load_shared(tile(at_.stage) + thread * 16);
    RowPair next_rows = group(at_.stage, 0);
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const u64 x = wgmma_descriptor(smem_.x(at_.stage));
      auto after = at_;
      after.step();
      uint4 w = next;
      Operands<T, Format::kGroup != 0> operands(next_rows);
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // k = 32 steps
        if (j == 2) w = next;
        if (j > 0 && j % Format::kPairs == 0) operands = Operands<T, Format::kGroup != 0>(next_rows);
        const u32 words[2] = {j % 2 ? w.z : w.x, j % 2 ? w.w : w.y};
        const u64 columns = wgmma_advance(x, j / 2 * (C::kTokens * 128) + j % 2 * 64);
        u32(&first)[4] = a[C::kPairs ? j % 2 : 0][0], (&second)[4] = a[C::kPairs ? j % 2 : 0][1];
        operands.template make<false>(first, words);
        if constexpr (C::kPairs) operands.template make<true>(second, words);
        wgmma_fence();
        Mma::rs(acc, first, columns, k > 0 || j > 0);
        if constexpr (!C::kPairs) {
          wgmma_commit();
          // With more pending the assembler no longer proves that registers of operands are free, and serialises.
          wgmma_wait<1>();
          if (j == 0 && previous >= 0) release(previous);  // the step before this one is read to its end
          operands.template make<true>(second, words);
          wgmma_fence();
        }
        Mma::rs(acc, second, wgmma_advance(columns, 32));
        wgmma_commit();
        wgmma_wait<1>();
        if (C::kPairs && j == 0 && previous >= 0) release(previous);
        if (j == 0) next = load_shared(tile(at_.stage) + 2048 + thread * 16);
        if (j < 3 && (j + 1) % Format::kPairs == 0) next_rows = group(at_.stage, (j + 1) / Format::kPairs);
        if (j == 2 && k + 1 < steps) {
          mbarrier_wait(smem_.full + after.stage * 8, after.phase);
          next = load_shared(tile(after.stage) + thread * 16);
        }
        if (j == 3 && k + 1 < steps) next_rows = group(after.stage, 0);
      }
      previous = at_.stage;
      at_ = after;
    }
    wgmma_wait<0>();
    release(previous);
  }

  TESSERA_DEVICE float* part(const Parts& parts, int block, int thread) const {
    return p_.parts + static_cast<i64>(parts.slot(block)) * (C::kRows * C::kTokens) +
           thread / kWarp * (16 * C::kTokens) + thread % kWarp * 4;
  }

  // Whether this warp is the last of those with parts of its 16 rows: `acc` then holds their sum, added up in the order
  // of K, so that results do not depend on who came last. The others leave their part for it.
  TESSERA_DEVICE bool combine(const Segment& s, Sums& acc) {
    if (s.last - s.first == p_.work.steps) return true;
    const Parts parts(p_.work, s.tile);
    const int thread = late_thread();
    float* mine = part(parts, blockIdx.x, thread);
#pragma unroll
    for (int i = 0; i < C::kTokens / 8; ++i)
      *reinterpret_cast<float4*>(mine + i * 128) = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
    __syncwarp();
    u32* arrived = p_.arrived + s.tile * (4 * C::kConsumers) + thread / kWarp;
    u32 before = lane_id() == 0 ? add_acquire_release(arrived) : 0;
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before != static_cast<u32>(parts.last - parts.first)) return false;
    __syncwarp();
    if (lane_id() == 0) *arrived = 0;
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) acc[i] = 0;
    for (int block = parts.first; block <= parts.last; ++block) {
      const float* from = part(parts, block, thread);
#pragma unroll
      for (int i = 0; i < C::kTokens / 8; ++i) {
        const float4 x = load_written(from + i * 128);
        acc[4 * i] += x.x, acc[4 * i + 1] += x.y, acc[4 * i + 2] += x.z, acc[4 * i + 3] += x.w;
      }
    }
    return true;
  }

  // Sums of a warp's 16 rows to y, through shared memory in which tokens become rows of 32 bytes.
  TESSERA_DEVICE void store(const Segment& s, const Sums& acc) {
    constexpr int kChunk = C::kTokens < 32 ? C::kTokens : 32;
    const int thread = late_thread(), warp = thread / kWarp, lane = thread % kWarp;
    const int first = p_.token<C>(s.tile), row = p_.row_of<C>(s.tile) + warp * 16, r = row + lane / 4;
    const u32 out = smem_.output(warp);
    float scale[2], bias[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool inside = r + 8 * h < p_.n;
      scale[h] = !Format::kGroup && inside ? p_.row[r + 8 * h] : 1.f;
      bias[h] = p_.bias && inside ? to_float(static_cast<const T*>(p_.bias)[r + 8 * h]) : 0.f;
    }
#pragma unroll
    for (int chunk = 0; chunk < C::kTokens / kChunk; ++chunk) {
#pragma unroll
      for (int pair = 0; pair < kChunk / 16; ++pair) {  // 16 tokens: two 8 x 8 matrices for each half of the rows
        u32 f[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = 4 * (chunk * (kChunk / 8) + pair * 2 + i / 2) + 2 * (i % 2), h = i % 2;
          f[i] = pack2<T>(acc[j] * scale[h] + bias[h], acc[j + 1] * scale[h] + bias[h]);
        }
        const int token = pair * 16 + lane / 16 * 8 + lane % 8;
        stmatrix_trans(out + token * 32 + (lane / 8 % 2 ^ token / 4 % 2) * 16, f);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kChunk / 16; ++i) {
        const int token = i * 16 + lane / 2, at = first + chunk * kChunk + token;
        const uint4 v = load_shared(out + token * 32 + (lane % 2 ^ token / 4 % 2) * 16);
        T* y = static_cast<T*>(p_.y) + static_cast<i64>(at) * p_.n;
        if (at < p_.tokens) store_eight<T>(y, row + lane % 2 * 8, p_.n, v);
      }
      __syncwarp();
    }
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const int index_;
  RingPosition<C::kStages> at_;
};

// C::kThreads threads, consumers first; C::kSmem bytes of dynamic shared memory.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    wide(const __grid_constant__ TensorMap map, const u8* weights, const float* row,
         const typename C::T* bias, typename C::T* y, float* parts, u32* arrived, int tokens, int n, int k, int steps,
         int split_tiles, int quota, int tiles) {
  extern __shared__ __align__(1024) u8 dynamic[];
  __shared__ u64 barriers[2 * C::kStages];
  const WideArgs p{weights, row, bias, y, parts, arrived, tokens, n, k, {steps, split_tiles, quota, tiles}};
  const WideSmem<C> smem{smem_address(dynamic), smem_address(barriers), smem_address(barriers + C::kStages)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(smem.full + s * 8, 1);
      mbarrier_init(smem.empty + s * 8, 4 * C::kConsumers * kArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = warp_id() / 4;
  if (group == C::kConsumers) {
    if constexpr (C::kBlocks == 1) registers_shrink<C::kProducerRegisters>();
    if (threadIdx.x == kWarpgroup * C::kConsumers) WideProducer<C>(p, map, smem).run();
    else await_predecessor();
  } else {
    if constexpr (C::kBlocks == 1) registers_grow<C::kConsumerRegisters>();
    WideConsumer<C>(p, smem, group).run();
  }
}

}  // namespace tessera::half
