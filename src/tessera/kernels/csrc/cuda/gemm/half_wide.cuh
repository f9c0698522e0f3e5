// y[t, n] = sum_k (q[n, k] - z) s x[t, k] + bias[n] for many tokens: 4-bit weights, 16-bit activations, wgmma (sm_90a).
//
// Weights are operand A, made of codes in registers: q - z is exact, and times the scale rounded once to the type of x
// (a scale per row is left to the epilogue, and nothing is rounded). Three warps fill a ring of k = 128 steps: weights by
// bulk copies, before the kernel ahead has ended, and x in boxes under the 128-byte swizzle. Consumer warpgroups own 64
// rows each and meet nowhere but in the ring, so that one stores while the others multiply.
#pragma once
#include "elementwise/dependency.cuh"
#include "gemm/half_wide_ends.cuh"

namespace tessera::half {

// kProducers warps share the stages of the ring, as issuing the copies of a step takes longer than a small tile's
// products. (Stages, not steps: a warp then never meets a stage two rounds ahead of its consumers, where the parity of
// a barrier would deceive it.) One thread of each.
template <class C>
class WideProducer {
 public:
  TESSERA_DEVICE WideProducer(const WideArgs& p, const TensorMap& map, const WideSmem<C>& smem, int warp)
      : p_(p), map_(map), smem_(smem), warp_(warp) {}

  TESSERA_DEVICE void run() {
    tensor_prefetch(map_);
    copy_steps<true>();
    await_predecessor();
    copy_steps<false>();
  }

 private:
  static constexpr int kTile = 2 * C::Format::kBytes;

  // Either the weights of the first kAhead steps, before anything is known of the kernel ahead, or all that is left.
  template <bool kBefore>
  TESSERA_DEVICE void copy_steps() {
    int stage = warp_, step = warp_, done = 0;  // of all the block's steps
    u32 phase = 0;
    WideShare<C> share(p_);
    for (WideSegment s; share.next(p_, s); done += s.last - s.first) {
      const int token = s.token<C>(p_), half = s.row<C>(p_) / 64;
      while (step < done + s.last - s.first) {
        if (kBefore && step >= C::kAhead) return;
        const bool filled = !kBefore && step < C::kAhead;
        const int k = s.first + step - done;
        if (!filled) {
          if (!kBefore) mbarrier_wait(smem_.empty(stage), phase ^ 1);
          bring_weights(stage, half, k);
        }
        if (!kBefore) {
          const u32 to = smem_.x(stage), full = smem_.full(stage);
          tensor_load(to, map_, k * kColumns, token, full);
          tensor_load(to + C::kTokenBytes / 2, map_, k * kColumns + kColumns / 2, token, full);
        }
        const bool wraps = stage + C::kProducers >= C::kStages;
        step += wraps ? C::kStages - stage + warp_ : C::kProducers;
        stage = wraps ? warp_ : stage + C::kProducers;
        phase ^= wraps;
      }
    }
  }

  // Of kPanels halves of tiles of 128 rows, as far as they exist: what lies in one tile by one copy.
  TESSERA_DEVICE void bring_weights(int stage, int half, int k) {
    const int end = min(half + C::kPanels, 2 * div_up(p_.n, 128));
    const u32 full = smem_.full(stage);
    u32 to = smem_.weights(stage);
    mbarrier_arrive_expect(full, (end - half) * C::Format::kBytes + C::kTokenBytes);
    while (half < end) {
      const int halves = min(2 - half % 2, end - half), bytes = halves * C::Format::kBytes;
      const i64 tile = static_cast<i64>(half / 2) * p_.steps + k;
      bulk_load(to, p_.weights + tile * kTile + half % 2 * C::Format::kBytes, bytes, full);
      to += bytes, half += halves;
    }
  }

  const WideArgs& p_;
  const TensorMap& map_;
  const WideSmem<C>& smem_;
  const int warp_;
};

// What turns codes of a thread's two rows into operands.
template <class T, bool kScaled>
struct Operands {
  Exact<T> exact[2];
  u32 scale[2];

  TESSERA_DEVICE explicit Operands(const RowPair& p) : exact{Exact<T>(p.zeros & 15), Exact<T>(p.zeros >> 4)} {
    if constexpr (is_same<T, f16>::value) {
      scale[0] = prmt(p.scales, 0, 0x1010), scale[1] = prmt(p.scales, 0, 0x3232);
    } else {
      const float2 s = unpack2<f16>(p.scales);
      scale[0] = pack2<T>(s.x * Exact<T>::kUnit, s.x * Exact<T>::kUnit);
      scale[1] = pack2<T>(s.y * Exact<T>::kUnit, s.y * Exact<T>::kUnit);
    }
  }

  // Operand A of one k = 16 step, out of the words of both rows.
  template <bool kHigh>
  TESSERA_DEVICE void make(u32 (&a)[4], const u32 (&words)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2;
      a[i] = exact[r].template make<kHigh>(words[r] >> i / 2 * 8);
      if constexpr (kScaled) a[i] = mul2<T>(a[i], scale[r]);
    }
  }
};

template <class C>
class WideConsumer {
 public:
  using T = typename C::T;
  using Format = typename C::Format;
  using Sums = float[C::kTokens / 2];

  TESSERA_DEVICE WideConsumer(const WideArgs& p, const WideSmem<C>& smem, int panel)
      : p_(p), smem_(smem), panel_(panel) {}

  TESSERA_DEVICE void run() {
    await_predecessor();
    WideShare<C> share(p_);
    for (WideSegment s; share.next(p_, s);) {
      Sums acc;
      RowPair whole{};
      if constexpr (!Format::kGroup) {
        const int rows = round_up(p_.n, 128), row = s.row<C>(p_) + threadIdx.x / kWarp * 16 + lane_id() / 4;
        const float* zero = p_.row + rows + min(row, rows - 9);  // a tile may end half empty
        whole = whole_row(zero[0], zero[8]);
      }
      multiply(s.last - s.first, acc, whole);
      keep(acc);
      WideEnd<C>(p_, smem_, panel_, s, output_).run(acc);
      __syncwarp();  // else the compiler takes the warp for divergent from here on: no uniform registers, slower loop
    }
  }

 private:
  using Rows = Operands<T, Format::kGroup != 0>;
  TESSERA_DEVICE static void release(u32 barrier) {
    __syncwarp();
    if (kArrivals > 1 || lane_id() == 0) mbarrier_arrive(barrier);
  }

  // What the next step needs is fetched, and found, while the products of this one run: the loop keeps addresses that
  // only grow, as a chain of them at the end of a step would be longer than products of 128 tokens.
  TESSERA_DEVICE void multiply(int steps, Sums& acc, const RowPair& whole) {
    using Mma = Wgmma<T, C::kTokens>;
    const int thread = threadIdx.x % kWarpgroup, pair = thread / kWarp * 8 + thread % kWarp / 4;
    const u32 begin = smem_.weights(0) + panel_ * Format::kBytes + thread * 16;
    u32 scales = kCodeBytes + pair * 4 - thread * 16, zeros = kCodeBytes + 128 + pair - thread * 16;
    asm volatile("" : "+r"(scales), "+r"(zeros));  // not again in each step
    const auto group = [&](u32 codes, int i) {
      if constexpr (!Format::kGroup) return whole;
      const u32 at = codes + i * kParamBytes;
      return RowPair{load_shared_word(at + scales), load_shared_byte(at + zeros)};
    };
    u32 codes = begin + at_.stage * C::kWeightBytes, previous = 0, a[2][2][4];
    mbarrier_wait(smem_.full(at_.stage), at_.phase);
    uint4 next = load_shared(codes);
    RowPair next_rows = group(codes, 0);
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const u64 x = wgmma_descriptor(smem_.x(at_.stage));
      const u32 empty = smem_.empty(at_.stage);
      at_.step();
      u32 full = smem_.full(at_.stage), next_codes = at_.stage ? codes + C::kWeightBytes : begin;
      asm volatile("" : "+r"(full), "+r"(next_codes));  // not later
      bool ready = false;
      uint4 w = next;
      Rows rows(next_rows);
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // k = 32 steps
        if (j == 2) w = next, ready = mbarrier_test(full, at_.phase);
        if (j % Format::kPairs == 0) {
          if (j > 0) rows = Rows(next_rows);
          if (j + Format::kPairs < 4) next_rows = group(codes, j / Format::kPairs + 1);
        }
        u32(&operands)[2][4] = a[j % 2];
        const u32 words[2] = {j % 2 ? w.z : w.x, j % 2 ? w.w : w.y};
        rows.template make<false>(operands[0], words);
        rows.template make<true>(operands[1], words);
        const u64 columns = wgmma_advance(x, j / 2 * (C::kTokens * 128) + j % 2 * 64);
        wgmma_fence();
        Mma::rs(acc, operands[0], columns, k > 0 || j > 0);
        Mma::rs(acc, operands[1], wgmma_advance(columns, 32));
        wgmma_commit();
        // With more pending the assembler no longer proves that registers of operands are free, and serialises.
        wgmma_wait<1>();
        if (j == 0) {
          if (previous) release(previous);  // the step before this one is read to its end
          next = load_shared(codes + 2048);
        }
        if (j == 2 && k + 1 < steps) {
          if (!ready) mbarrier_wait(full, at_.phase);
          next = load_shared(next_codes);
        }
        if (j == (Format::kPairs == 1 ? 3 : 2) && k + 1 < steps) next_rows = group(next_codes, 0);
      }
      previous = empty, codes = next_codes;
    }
    wgmma_wait<0>();
    release(previous);
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const int panel_;
  u32 output_ = 0;  // which of the two buffers of y is next
  RingPosition<C::kStages> at_;
};

// C::kThreads threads, consumers first; C::kSmem bytes of dynamic shared memory.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    wide(const __grid_constant__ TensorMap map, const u8* weights, const float* row,
         const typename C::T* bias, typename C::T* y, float* parts, u32* arrived, int tokens, int n, int steps,
         int cut_tiles, int cuts) {
  extern __shared__ __align__(1024) u8 smem[];
  const WideArgs p{weights, row, bias, y, parts, arrived, tokens, n, steps, cut_tiles, cuts};
  const WideSmem<C> at{smem_address(smem)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(at.full(s), 1);
      mbarrier_init(at.empty(s), 4 * C::kPanels * kArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = warp_id() / 4;
  if (group == C::kPanels) {
    registers_shrink<C::kProducerRegisters>();
    const int warp = warp_id() % 4;
    if (warp < C::kProducers && lane_id() == 0) WideProducer<C>(p, map, at, warp).run();
    else await_predecessor();
  } else {
    registers_grow<C::kConsumerRegisters>();
    WideConsumer<C>(p, at, group).run();
  }
}

}  // namespace tessera::half
