#pragma once
#include "common/base.cuh"

namespace tessera {

struct Phase {
  int arrivals = 0, missing = 0, bytes = 0;
  u32 parity = 0;
};
inline Phase phases[emulated::kSharedBytes / 8];

inline void count(u32 barrier, int arrivals, int bytes) {
  std::lock_guard lock(emulated::mutex);
  Phase& p = phases[barrier / 8];
  p.missing -= arrivals, p.bytes += bytes;
  if (p.missing < 0) fprintf(stderr, "more arrivals at %u than it waits for\n", barrier), abort();
  if (p.missing == 0 && p.bytes == 0) p.missing = p.arrivals, p.parity ^= 1;
}
inline void mbarrier_init(u32 barrier, u32 arrivals) {
  phases[barrier / 8] = {static_cast<int>(arrivals), static_cast<int>(arrivals), 0, 0};
}
inline void fence_barrier_init() {}
inline void mbarrier_arrive(u32 barrier) { count(barrier, 1, 0); }
inline void mbarrier_arrive_expect(u32 barrier, u32 bytes) { count(barrier, 1, bytes); }
inline bool mbarrier_test(u32 barrier, u32 parity) {
  std::lock_guard lock(emulated::mutex);
  return phases[barrier / 8].parity != parity;
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_test(barrier, parity)) std::this_thread::yield();
}
// Threads here are no warp in lockstep.
inline void mbarrier_wait_together(u32 barrier, u32 parity) {
  mbarrier_wait(barrier, parity);
  __syncwarp();
}

}  // namespace tessera
