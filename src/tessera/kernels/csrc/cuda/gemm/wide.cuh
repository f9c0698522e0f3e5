// y[t, n] = (sum_k A[n, k] x[t, k] - offset[n] row_sum[t]) scale[n] x_scale[t] + bias[n]: 4- or 8-bit weights, int8
// activations, for many tokens. wgmma on sm_90a with the weights as operand A (unpacked in registers, or from shared
// memory where they have 8 bits) and tokens on N.
//
// Three warps bring weights and activations into a ring of K = 128 steps by bulk copies, weights before the kernel
// ahead has ended. A fourth brings what the epilogue needs. Consumer warpgroups own 64 rows each.
#pragma once
#include "common/bulk.cuh"
#include "common/mbarrier.cuh"
#include "common/wgmma.cuh"
#include "gemm/wide_ends.cuh"

namespace tessera::gemm {

// kProducers warps share the stages of the ring, as issuing the copies of a step takes longer than a small tile's
// products. (Stages, not steps: a warp then never meets a stage two rounds ahead of its consumers, where the parity of
// a barrier would deceive it.) Lane i < kPanels copies the weights of panel i, lane kPanels the activations.
template <class C>
class Producer {
 public:
  TESSERA_DEVICE Producer(const WideArgs& p, const WideSmem<C>& smem, int warp)
      : p_(p), smem_(smem), warp_(warp), of_weights_(lane_id() < C::kPanels),
        to_(of_weights_ ? smem.weights(0) + lane_id() * kTile : smem.activations(0)) {}

  TESSERA_DEVICE void run() {
    copy_steps<true>();
    grid_dependency_wait();
    grid_launch_dependents();
    copy_steps<false>();
  }

 private:
  static constexpr int kTile = C::Format::kTileBytes;

  // Either the weights of the first kAhead steps, before anything is known of the kernel ahead, or all that is left.
  template <bool kBefore>
  TESSERA_DEVICE void copy_steps() {
    int stage = warp_, done = 0, step = warp_;  // of all the block's steps
    u32 parity = 0;
    Share<C> share(p_);
    for (Segment s; share.next(p_, s); done += s.last - s.first) {
      aim(s, s.first + step - done);
#pragma unroll 1
      while (step < done + s.last - s.first) {
        if (kBefore && step >= C::kAhead) return;
        const bool filled = !kBefore && step < C::kAhead;
        const u32 full = smem_.full(stage);
        if (!filled) {
          if (!kBefore) mbarrier_wait_together(smem_.empty(stage), parity ^ 1);
          if (lane_id() == 0) mbarrier_arrive_expect(full, expected_);
        }
        if (bytes_ && (of_weights_ ? !filled : !kBefore)) {
          bulk_load(to_ + stage * (of_weights_ ? C::kWeightBytes : C::kActivationBytes), from_, bytes_, full);
        }
        const bool wraps = stage + C::kProducers >= C::kStages;
        const int hop = wraps ? C::kStages - stage + warp_ : C::kProducers;
        stage = wraps ? warp_ : stage + C::kProducers;
        parity ^= wraps;
        step += hop, from_ += static_cast<i64>(hop) * stride_;
        __syncwarp();  // no lane is left behind at a barrier that goes on
      }
    }
  }

  // At step k of a tile. Tokens and rows that do not exist are not copied: their place keeps what it held, and no one
  // stores what comes of it.
  TESSERA_DEVICE void aim(const Segment& s, int k) {
    const int lane = lane_id(), tile = s.row<C>(p_) / kRows, atoms = div_up(p_.tokens, kAtom);
    const int tiles = min(C::kPanels, div_up(p_.n, kRows) - tile), atom = s.token<C>(p_) / kAtom;
    const u32 token_bytes = min(C::kTokens / kAtom, atoms - atom) * (kAtom * kStep);
    expected_ = tiles * kTile + token_bytes;
    if (of_weights_) {
      from_ = p_.weights + (static_cast<i64>(tile + lane) * p_.steps + k) * kTile;
      bytes_ = lane < tiles ? kTile : 0, stride_ = kTile;
    } else {
      from_ = p_.x + (static_cast<i64>(k) * atoms + atom) * (kAtom * kStep);
      bytes_ = lane == C::kPanels ? token_bytes : 0, stride_ = atoms * (kAtom * kStep);
    }
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const int warp_;
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
      parameters[i] = load_shared_word(tile + kCodeBytes + i * kParameterBytes + thread / 4 * 4);
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

  TESSERA_DEVICE Consumer(const WideArgs& p, const WideSmem<C>& smem, int index)
      : p_(p), smem_(smem), panel_(index % C::kPanels), team_(index / C::kPanels), next_(team_) {
    turn_.stage = team_;
  }

  TESSERA_DEVICE void run() {
    grid_dependency_wait();
    grid_launch_dependents();
    Turn<2> ends;
    Share<C> share(p_);
    int done = 0;  // steps of this block
    for (Segment s; share.next(p_, s);) {
      Sums acc;
      if constexpr (kFromZero) clear(acc);
      done += s.last - s.first;
      const int steps = max(0, div_up(done - next_, C::kTeams));  // of this team
      next_ += steps * C::kTeams;
      if constexpr (C::Format::kBits == 4) multiply_packed(steps, acc);
      else multiply_bytes(steps, acc);
      keep(acc);
      mbarrier_wait(smem_.ends_full(ends.stage), ends.parity);
      TileEnd<C>(p_, smem_, panel_, team_, ends.stage, s, output_).run(acc);
      __syncwarp();  // else the compiler takes the warp for divergent from here on: no uniform registers, slower loop
      if (lane_id() == 0) mbarrier_arrive(smem_.ends_empty(ends.stage));
      ends.advance();
    }
    if (threadIdx.x % kWarpgroup == 0) bulk_wait<0>();  // y is there
  }

 private:
  TESSERA_DEVICE void wait_full(const Turn<C::kStages>& at) { mbarrier_wait(smem_.full(at.stage), at.parity); }
  TESSERA_DEVICE void release(int stage) {
    if (lane_id() == 0) mbarrier_arrive(smem_.empty(stage));
  }

  // A team may have no step of a short segment, so its sums start from zero; otherwise the first product sets them.
  static constexpr bool kFromZero = C::kTeams > 1;
  TESSERA_DEVICE static void clear(Sums& acc) {
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) acc[i] = 0;
    keep(acc);
  }

  TESSERA_DEVICE void multiply_packed(int steps, Sums& acc) {
    using Mma = Wgmma<u8, C::kTokens>;
    const int thread = threadIdx.x % kWarpgroup;
    Packed<typename C::Format> now, next;
    const auto fetch = [&](Packed<typename C::Format>& w, const Turn<C::kStages>& at) {
      wait_full(at);
      w.load(smem_.weights(at.stage) + panel_ * C::Format::kTileBytes, thread);
    };
    u32 a[4][4];
    if (steps > 0) fetch(now, turn_);
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const u64 desc = wgmma_descriptor(smem_.activations(turn_.stage));
      auto after = turn_;
      after.template advance<C::kTeams>();
#pragma unroll
      for (int j = 0; j < 4; j += C::kBatch) {
#pragma unroll
        for (int i = 0; i < C::kBatch; ++i) now.operand(a[j + i], j + i), keep(a[j + i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < C::kBatch; ++i) {
          Mma::rs(acc, a[j + i], wgmma_advance(desc, 32 * (j + i)), kFromZero || k > 0 || j + i > 0);
        }
        wgmma_commit();
        // With two pending the assembler no longer proves that the operands are free, and serialises.
        wgmma_wait<1>();
        // Everything but the newest group has retired, so the step before this one is read to its end.
        if (j == 0 && previous >= 0) release(previous);
        if (j == (C::kBatch == 1 ? 1 : 4 - C::kBatch) && k + 1 < steps) fetch(next, after);
      }
      previous = turn_.stage;
      turn_ = after;
      now = next;
    }
    wgmma_wait<0>();
    if (previous >= 0) release(previous);
  }

  TESSERA_DEVICE void multiply_bytes(int steps, Sums& acc) {
    using Mma = Wgmma<i8, C::kTokens>;
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      wait_full(turn_);
      const u64 x = wgmma_descriptor(smem_.activations(turn_.stage));
      const u64 w = wgmma_descriptor(smem_.weights(turn_.stage) + panel_ * C::Format::kTileBytes);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j)
        Mma::ss(acc, wgmma_advance(w, 32 * j), wgmma_advance(x, 32 * j), kFromZero || k > 0 || j > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (previous >= 0) release(previous);
      previous = turn_.stage;
      turn_.template advance<C::kTeams>();
    }
    wgmma_wait<0>();
    if (previous >= 0) release(previous);
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const int panel_, team_;
  int next_;  // of this block's steps, the next of this team
  u32 output_ = 0;  // which of the two buffers of y is next
  Turn<C::kStages> turn_;
};

// The last warp of the first warpgroup.
template <class C>
TESSERA_DEVICE void bring_ends(const WideArgs& p, const WideSmem<C>& smem) {
  grid_dependency_wait();
  grid_launch_dependents();
  Turn<2> turn;
  Share<C> share(p);
  for (Segment s; share.next(p, s);) {
    mbarrier_wait(smem.ends_empty(turn.stage), turn.parity ^ 1);
    stage_ends<C>(p, smem, turn.stage, s);
    mbarrier_arrive(smem.ends_full(turn.stage));
    turn.advance();
  }
}

// C::kThreads threads and C::kSmem bytes of dynamic shared memory a block.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    wide(const __grid_constant__ TensorMap map, const u8* weights, const u8* x, const i32* offset,
         const float* row_scale, const typename C::T* bias, const i32* row_sum, const float* token_scale,
         typename C::T* y, i32* parts, u32* arrived, int tokens, int n, int steps, int cut_tiles, int cuts) {
  extern __shared__ __align__(1024) u8 smem[];
  const WideArgs p{&map, weights, x, offset, row_scale, bias, row_sum, token_scale, y, parts, arrived,
                   tokens, n, steps, cut_tiles, cuts};
  const WideSmem<C> at{smem_address(smem)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(at.full(s), 1);
      mbarrier_init(at.empty(s), 4 * C::kPanels);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(at.ends_full(i), kWarp);
      mbarrier_init(at.ends_empty(i), 4 * C::kConsumers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = warp_id() / 4;
  if (group == 0) {
    registers_shrink<C::kProducerRegisters>();
    if (warp_id() < C::kProducers) Producer<C>(p, at, warp_id()).run();
    else bring_ends<C>(p, at);
  } else {
    registers_grow<C::kConsumerRegisters>();
    Consumer<C>(p, at, group - 1).run();
  }
}

}  // namespace tessera::gemm
