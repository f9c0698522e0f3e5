// What rings of shared-memory stages are built of, with copies by the engine (sm_90) or by cp.async (sm_80).
#pragma once
#include "common/async_copy.cuh"
#include "common/bulk.cuh"
#include "common/mbarrier.cuh"

namespace tessera {

#if __CUDA_ARCH__ >= 900 && !defined(TESSERA_NO_BULK_COPY)
constexpr bool kBulkCopy = true;
#else
constexpr bool kBulkCopy = false;  // sm_80: the producer's lanes copy with cp.async
#endif

// One lane arrives for its warp, after __syncwarp. compute-sanitizer's racecheck does not follow that; for it every
// lane arrives for itself.
#ifdef TESSERA_RACECHECK
constexpr int kArrivals = kWarp;
#else
constexpr int kArrivals = 1;
#endif

// mbarrier.test_wait.parity, sm_80
TESSERA_DEVICE void await_phase(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  mbarrier_wait(barrier, parity);
#else
  u32 done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#endif
}

// Where a side of the ring stands. Both sides step through the stages in the same order.
template <int kStages>
struct RingPosition {
  int stage = 0;
  u32 phase = 0;
  TESSERA_DEVICE void step() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace tessera
