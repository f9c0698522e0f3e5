// A ring of shared-memory stages that one producer warp fills with parts of pages and several warps read.
#pragma once
#include "common/ring.cuh"
#include "common/types.cuh"

namespace tessera {

// Shared memory of a ring: kStages stages of kStageBytes (panels of kPanelBytes), then a full and an empty barrier for
// each. With kOnce nobody reads the bytes again, and L2 gives them up first.
template <int kStages, int kStageBytes, int kPanelBytes, bool kOnce = false>
struct Ring {
  static constexpr int kBytes = kStages * (kStageBytes + 16);
  u32 base;

  TESSERA_DEVICE u32 stage(int i) const { return base + i * kStageBytes; }
  TESSERA_DEVICE u32 full(int i) const { return base + kStages * kStageBytes + i * 16; }
  TESSERA_DEVICE u32 empty(int i) const { return full(i) + 8; }

  // One thread; a block barrier must follow.
  TESSERA_DEVICE void init(int consumer_warps) const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full(i), kBulkCopy ? kArrivals : kWarp);
      mbarrier_init(empty(i), consumer_warps * kArrivals);
    }
#if __CUDA_ARCH__ >= 900
    fence_barrier_init();
#endif
  }

  // The whole producer warp: the first `bytes` bytes of every panel into the next stage, and zeros up to `padded`
  // (both multiples of 16). Panels follow one another in both memories.
  TESSERA_DEVICE void fill(RingPosition<kStages>& at, const char* from, int bytes, int padded) const {
    await_phase(empty(at.stage), at.phase ^ 1);
    const u32 to = stage(at.stage), barrier = full(at.stage);
    if constexpr (kBulkCopy) {
      if (bytes < padded) {
        for (int panel = 0; panel < kStageBytes; panel += kPanelBytes)
          for (int i = bytes + lane_id() * 16; i < padded; i += kWarp * 16) store_shared(to + panel + i, uint4{});
        fence_async();
      }
      __syncwarp();
      if (lane_id() == 0) {
        mbarrier_arrive_expect(barrier, bytes * (kStageBytes / kPanelBytes));
        if (bytes == kPanelBytes) {
          copy(to, from, kStageBytes, barrier);
        } else {
          for (int panel = 0; panel < kStageBytes; panel += kPanelBytes)
            copy(to + panel, from + panel, bytes, barrier);
        }
      } else if (kArrivals > 1) {
        mbarrier_arrive(barrier);
      }
    } else {
      for (int panel = 0; panel < kStageBytes; panel += kPanelBytes)
        for (int i = lane_id() * 16; i < padded; i += kWarp * 16)
          cp_async(to + panel + i, from + panel + i, i < bytes ? 16 : 0);
      cp_async_arrive(barrier);
    }
    at.step();
  }

  TESSERA_DEVICE static void copy(u32 to, const char* from, u32 bytes, u32 barrier) {
    if constexpr (kOnce) {
      bulk_load(to, from, bytes, barrier, policy_evict_first());
    } else {
      bulk_load(to, from, bytes, barrier);
    }
  }

  // A whole consumer warp.
  TESSERA_DEVICE u32 wait(const RingPosition<kStages>& at) const {
    await_phase(full(at.stage), at.phase);
    return stage(at.stage);
  }
  TESSERA_DEVICE void release(RingPosition<kStages>& at) const {
    __syncwarp();
    if (kArrivals > 1 || lane_id() == 0) mbarrier_arrive(empty(at.stage));
    at.step();
  }
};

}  // namespace tessera
