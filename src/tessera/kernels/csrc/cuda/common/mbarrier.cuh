// Barriers in shared memory that count arrivals and bytes. A barrier is 8 bytes, 8-byte aligned, and alternates
// between phases of parity 0, 1, 0, ...: wait(parity) returns once the phase of that parity has completed.
#pragma once
#include "common/base.cuh"

namespace tessera {

// mbarrier.init, sm_80. One thread; then fence_barrier_init (clusters) or a block barrier before anyone uses it.
TESSERA_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// fence.mbarrier_init, sm_90: makes the initialisation visible to the cluster and to the copy engine.
TESSERA_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// mbarrier.arrive, sm_80
TESSERA_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" :: "r"(barrier) : "memory");
}
// mbarrier.arrive.expect_tx, sm_90: one arrival, and `bytes` more that copies must bring to complete the phase.
TESSERA_DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }"
               :: "r"(barrier), "r"(bytes) : "memory");
}
// mbarrier.arrive on the barrier at the same address in block `rank` of the cluster, sm_90. It hands a buffer back; it
// does not publish writes to the other block: release at cluster scope costs a fence of the whole GPU (MEMBAR.GPU),
// several hundred cycles each.
TESSERA_DEVICE void mbarrier_arrive_remote(u32 barrier, u32 rank) {
  asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; "
               "mbarrier.arrive.shared::cluster.b64 _, [r]; }"
               :: "r"(barrier), "r"(rank) : "memory");
}
// mbarrier.try_wait.parity, sm_90: may suspend the thread for a while; whether the phase is complete.
TESSERA_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}
// mbarrier.test_wait.parity, sm_80: whether it is complete by now.
TESSERA_DEVICE bool mbarrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}
TESSERA_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}
// The same where lanes of a warp wait that others of it do not wait for. They test the barrier together; one that came
// two phases late would see the parity that it began with.
TESSERA_DEVICE void mbarrier_wait_together(u32 barrier, u32 parity) { mbarrier_wait(barrier, parity); }

}  // namespace tessera
