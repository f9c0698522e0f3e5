// y[t, n] = (sum_k A[n, k] x[t, k] - offset[n] row_sum[t]) scale[n] x_scale[t] + bias[n]: 4- or 8-bit weights, int8
// activations, for many tokens. wgmma on sm_90a with the weights as operand A (unpacked in registers, or from shared
// memory where they have 8 bits) and tokens on N.
//
// One warp brings weights and activations into a ring of K = 128 steps by bulk copies, weights before the kernel ahead
// has ended. The other warps of its warpgroup bring what the epilogue needs. Consumer warpgroups own 64 rows each and
// meet nowhere but in the ring, so that one stores while the others multiply.
#pragma once
#include "common/bulk.cuh"
#include "common/mbarrier.cuh"
#include "common/wgmma.cuh"
#include "gemm/wide_ends.cuh"

namespace tessera::gemm {

// Lane i < kConsumers of one warp copies the weights of row tile i, lane kConsumers the activations.
template <class C>
class Producer {
 public:
  TESSERA_DEVICE Producer(const WideArgs& p, const WideSmem<C>& smem)
      : p_(p), smem_(smem), of_weights_(lane_id() < C::kConsumers),
        to_(of_weights_ ? smem.weights(0) + lane_id() * kTile : smem.activations(0)) {}

  TESSERA_DEVICE void run() {
    const int ahead = fill();
    grid_dependency_wait();
    grid_launch_dependents();
    Turn<C::kStages> turn;
    Share<C> share(p_);
    int done = 0;
    for (Segment s; share.next(p_, s);) {
      aim(s);
#pragma unroll 1
      for (int k = s.first; k < s.last; ++k, ++done) {
        const bool filled = done < ahead;
        if (!filled) {
          mbarrier_wait(smem_.empty + turn.stage * 8, turn.parity ^ 1);
          expect(turn.stage);
        }
        copy(turn.stage, !(filled && of_weights_));
        turn.advance();
      }
    }
  }

 private:
  static constexpr int kTile = C::Format::kTileBytes;

  // The weights of the ring's first turn, before anything is known of the kernel ahead; how many steps that is.
  TESSERA_DEVICE int fill() {
    Share<C> share(p_);
    int stage = 0;
    for (Segment s; stage < C::kStages && share.next(p_, s);) {
      aim(s);
#pragma unroll 1
      for (int k = s.first; k < s.last && stage < C::kStages; ++k, ++stage) {
        expect(stage);
        copy(stage, of_weights_);
      }
    }
    return stage;
  }

  // Tokens and rows that do not exist are not copied: their place keeps what it held, and no one stores what comes of it.
  TESSERA_DEVICE void aim(const Segment& s) {
    const int lane = lane_id(), token = s.token<C>(p_), tile = s.row<C>(p_) / kRows, atoms = div_up(p_.tokens, kAtom);
    const int tiles = min(C::kConsumers, div_up(p_.n, kRows) - tile);
    const u32 token_bytes = min(C::kTokens / kAtom, atoms - token / kAtom) * (kAtom * kStep);
    expected_ = tiles * kTile + token_bytes;
    if (of_weights_) {
      from_ = p_.weights + (static_cast<i64>(tile + lane) * p_.steps + s.first) * kTile;
      bytes_ = lane < tiles ? kTile : 0, stride_ = kTile;
    } else {
      from_ = p_.x + (static_cast<i64>(s.first) * atoms + token / kAtom) * (kAtom * kStep);
      bytes_ = lane == C::kConsumers ? token_bytes : 0, stride_ = atoms * (kAtom * kStep);
    }
  }
  TESSERA_DEVICE void expect(int stage) {
    if (lane_id() == 0) mbarrier_arrive_expect(smem_.full + stage * 8, expected_);
  }
  TESSERA_DEVICE void copy(int stage, bool now) {
    const u32 to = to_ + stage * (of_weights_ ? C::kWeightBytes : C::kActivationBytes);
    if (now && bytes_) bulk_load(to, from_, bytes_, smem_.full + stage * 8);
    from_ += stride_;
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const bool of_weights_;
  const u32 to_;
  const u8* from_ = nullptr;
  u32 bytes_ = 0, expected_ = 0, stride_ = 0;
};

// A thread's share of one 4-bit tile: 64 codes, and a word of parameters for its two rows in each group.
template <class Format>
struct Packed {
  uint4 half[2];
  u32 parameters[Format::kGroups ? Format::kGroups : 1];

  TESSERA_DEVICE void load(u32 tile, int thread) {
    half[0] = load_shared(tile + thread * 16);
    half[1] = load_shared(tile + 2048 + thread * 16);
#pragma unroll
    for (int i = 0; i < Format::kGroups; ++i) {
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(parameters[i]) : "r"(tile + kCodeBytes + i * kParameterBytes + thread / 4 * 4));
    }
  }
  TESSERA_DEVICE void operand(u32 (&a)[4], int j) const {
    const uint4 w = half[j / 2];
    RowPair rows{};
    if constexpr (Format::kGroup) rows = row_pair(parameters[j * 32 / Format::kGroup]);
    unpack<Format::kGroup != 0>(a, j % 2 ? w.z : w.x, j % 2 ? w.w : w.y, rows);
  }
};

template <class C>
class Consumer {
 public:
  using Sums = i32[C::kTokens / 2];

  TESSERA_DEVICE Consumer(const WideArgs& p, const WideSmem<C>& smem, int index) : p_(p), smem_(smem), index_(index) {}

  TESSERA_DEVICE void run() {
    grid_dependency_wait();
    grid_launch_dependents();
    wait_for_stagger();
    Turn<2> ends;
    Share<C> share(p_);
    const int warp = index_ * 4 + threadIdx.x % kWarpgroup / kWarp;
    for (Segment s; share.next(p_, s);) {
      Sums acc;
      if constexpr (C::Format::kBits == 4) multiply_packed(s.last - s.first, acc);
      else multiply_bytes(s.last - s.first, acc);
      keep(acc);
      mbarrier_wait(smem_.ends_full + ends.stage * 8, ends.parity);
      if (combine<C>(p_, s, warp, acc)) store_tile<C>(p_, smem_, ends.stage, s, warp, acc);
      if (lane_id() == 0) mbarrier_arrive(smem_.ends_empty + ends.stage * 8);
      ends.advance();
    }
  }

 private:
  // Warpgroups that start together end together, and then no one multiplies while all store.
  TESSERA_DEVICE void wait_for_stagger() {
    Segment s;
    if (Share<C>(p_).next(p_, s)) {
      const int steps = min(s.last - s.first, C::kStages);
      mbarrier_wait(smem_.full + min(index_ * p_.stagger, steps - 1) * 8, 0);
    }
  }

  TESSERA_DEVICE void wait_full(const Turn<C::kStages>& at) { mbarrier_wait(smem_.full + at.stage * 8, at.parity); }
  TESSERA_DEVICE void release(int stage) {
    if (lane_id() == 0) mbarrier_arrive(smem_.empty + stage * 8);
  }

  TESSERA_DEVICE void multiply_packed(int steps, Sums& acc) {
    using Mma = Wgmma<u8, C::kTokens>;
    const int thread = threadIdx.x % kWarpgroup;
    Packed<typename C::Format> now, next;
    const auto fetch = [&](Packed<typename C::Format>& w, const Turn<C::kStages>& at) {
      wait_full(at);
      w.load(smem_.weights(at.stage) + index_ * C::Format::kTileBytes, thread);
    };
    u32 a[4][4];
    fetch(now, turn_);
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const u64 desc = wgmma_descriptor(smem_.activations(turn_.stage));
      auto after = turn_;
      after.advance();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        now.operand(a[j], j);
        wgmma_fence();
        Mma::rs(acc, a[j], wgmma_advance(desc, 32 * j), k > 0 || j > 0);
        wgmma_commit();
        // With two pending the assembler no longer proves that a[j] is free, and serialises.
        wgmma_wait<1>();
        // Everything but the newest wgmma has retired, so the step before this one is read to its end.
        if (j == 0 && previous >= 0) release(previous);
        if (j == 1 && k + 1 < steps) fetch(next, after);
      }
      previous = turn_.stage;
      turn_ = after;
      now = next;
    }
    wgmma_wait<0>();
    release(previous);
  }

  TESSERA_DEVICE void multiply_bytes(int steps, Sums& acc) {
    using Mma = Wgmma<i8, C::kTokens>;
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      wait_full(turn_);
      const u64 x = wgmma_descriptor(smem_.activations(turn_.stage));
      const u64 w = wgmma_descriptor(smem_.weights(turn_.stage) + index_ * C::Format::kTileBytes);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) Mma::ss(acc, wgmma_advance(w, 32 * j), wgmma_advance(x, 32 * j), k > 0 || j > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (previous >= 0) release(previous);
      previous = turn_.stage;
      turn_.advance();
    }
    wgmma_wait<0>();
    release(previous);
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  int index_;
  Turn<C::kStages> turn_;
};

// The warps of the first warpgroup that copy nothing.
template <class C>
TESSERA_DEVICE void bring_ends(const WideArgs& p, const WideSmem<C>& smem) {
  constexpr int kStagers = kWarpgroup - kWarp;
  grid_dependency_wait();
  grid_launch_dependents();
  Turn<2> turn;
  Share<C> share(p);
  for (Segment s; share.next(p, s);) {
    mbarrier_wait(smem.ends_empty + turn.stage * 8, turn.parity ^ 1);
    stage_ends<C>(p, smem, turn.stage, s, threadIdx.x - kWarp, kStagers);
    mbarrier_arrive(smem.ends_full + turn.stage * 8);
    turn.advance();
  }
}

// C::kThreads threads, C::kSmem bytes of dynamic shared memory, one or C::kBlocks blocks a SM.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    wide(const u8* weights, const u8* x, const i32* offset, const float* row_scale, const typename C::T* bias,
         const i32* row_sum, const float* token_scale, typename C::T* y, i32* partial, u32* arrived, int tokens, int n,
         int steps, int split_tiles, int quota, int stagger) {
  extern __shared__ __align__(1024) u8 dynamic[];
  __shared__ u64 barriers[2 * C::kStages + 4];
  const WideArgs p{weights, x, offset, row_scale, bias, row_sum, token_scale, y, partial, arrived,
                   tokens, n, steps, split_tiles, quota, stagger};
  const u32 first = smem_address(barriers), ends = first + 2 * C::kStages * 8;
  const WideSmem<C> smem{smem_address(dynamic), first, first + C::kStages * 8, ends, ends + 16};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(smem.full + s * 8, 1);
      mbarrier_init(smem.empty + s * 8, 4 * C::kConsumers);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(smem.ends_full + i * 8, kWarpgroup - kWarp);
      mbarrier_init(smem.ends_empty + i * 8, 4 * C::kConsumers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = warp_id() / 4;
  if (group == 0) {
    registers_shrink<C::kProducerRegisters>();
    if (warp_id() > 0) bring_ends<C>(p, smem);
    else Producer<C>(p, smem).run();
  } else {
    registers_grow<C::kConsumerRegisters>();
    Consumer<C>(p, smem, group - 1).run();
  }
}

}  // namespace tessera::gemm
