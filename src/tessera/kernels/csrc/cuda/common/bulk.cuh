// The copy engine without tensor maps: contiguous bytes, sm_90. Addresses and sizes are multiples of 16.
#pragma once
#include "common/base.cuh"

namespace tessera {

// createpolicy.fractional, sm_80: how long L2 should keep what a copy brings.
TESSERA_DEVICE u64 policy_evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// cp.async.bulk global -> shared: one thread issues it; the bytes are counted off `barrier` as they land.
TESSERA_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(shared), "l"(global), "r"(bytes), "r"(barrier) : "memory");
}
TESSERA_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1], %2, [%3], %4;"
               :: "r"(shared), "l"(global), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
// The same into every block of `mask` of the cluster, at the same offset, each counting on its own barrier.
TESSERA_DEVICE void bulk_load_multicast(u32 shared, const void* global, u32 bytes, u32 barrier, u16 mask) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1], %2, [%3], %4;"
               :: "r"(shared), "l"(global), "r"(bytes), "r"(barrier), "h"(mask) : "memory");
}

// cp.async.bulk.prefetch.L2: asks for the bytes in L2.
TESSERA_DEVICE void bulk_prefetch(const void* global, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(global), "r"(bytes) : "memory");
}

// A CUtensorMap, made by the host; a parameter of a kernel as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  u64 opaque[16];
};
// prefetch.tensormap: asks for the description itself.
TESSERA_DEVICE void tensor_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
// cp.async.bulk.tensor: the box at (column, row) of a matrix; zeros where it leaves the matrix, and all bytes counted.
TESSERA_DEVICE void tensor_load(u32 shared, const TensorMap& map, int column, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];"
               :: "r"(shared), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// cp.async.bulk.tensor shared -> global: the box at (column, row), what of it lies in the matrix. As bulk_store.
TESSERA_DEVICE void tensor_store(const TensorMap& map, int column, int row, u32 shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(&map), "r"(column), "r"(row), "r"(shared) : "memory");
}

// cp.async.bulk shared -> global, in groups of the issuing thread. Writers of the shared bytes need
// fence_async() and a barrier before.
TESSERA_DEVICE void bulk_store(void* global, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(global), "r"(shared), "r"(bytes) : "memory");
}
// cp.reduce.async.bulk: adds 32-bit integers in global memory instead of overwriting them.
TESSERA_DEVICE void bulk_add_s32(void* global, u32 shared, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;"
               :: "l"(global), "r"(shared), "r"(bytes) : "memory");
}
TESSERA_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most kPending groups have not yet read their shared memory (it may then be overwritten).
template <int kPending>
TESSERA_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(kPending) : "memory");
}
// Until at most kPending groups are not complete.
template <int kPending>
TESSERA_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" :: "n"(kPending) : "memory");
}

// fence.proxy.async: orders this thread's ordinary shared-memory accesses before those of the copy engine and wgmma.
TESSERA_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace tessera
