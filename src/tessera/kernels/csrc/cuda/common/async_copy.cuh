// cp.async, sm_80: global to shared memory without registers, counted by groups of the issuing thread.
#pragma once
#include "common/base.cuh"

namespace tessera {

// 16 bytes, through L2 only. `valid` bytes are read (0 to 16), the rest of the destination is zeroed.
TESSERA_DEVICE void cp_async(u32 shared, const void* global, u32 valid = 16) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(shared), "l"(global), "r"(valid) : "memory");
}
// 4 or 8 bytes, through L1.
template <int kBytes>
TESSERA_DEVICE void cp_async_small(u32 shared, const void* global, u32 valid = kBytes) {
  static_assert(kBytes == 4 || kBytes == 8, "4 or 8 bytes");
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :: "r"(shared), "l"(global), "n"(kBytes), "r"(valid) : "memory");
}
TESSERA_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of this thread's groups are outstanding.
template <int kPending>
TESSERA_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(kPending) : "memory"); }

// cp.async.mbarrier.arrive.noinc, sm_80: arrives once this thread's earlier cp.async have landed.
TESSERA_DEVICE void cp_async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(barrier) : "memory");
}

// prefetch.global.L2, any sm: the line of `global` on its way into L2. A hint: no value reaches the thread.
TESSERA_DEVICE void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(global));
}

}  // namespace tessera
