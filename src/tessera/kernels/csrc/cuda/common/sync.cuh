// Ordering beyond the block: dependent launches, clusters, named barriers, register reallocation.
#pragma once
#include "common/base.cuh"

namespace tessera {

// griddepcontrol.wait, sm_90: until every block of the preceding grid has ended and its writes are visible.
// Returns at once in a launch without the attribute.
TESSERA_DEVICE void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// griddepcontrol.launch_dependents, sm_90: the next grid may start once every block has said this or ended.
TESSERA_DEVICE void grid_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// barrier.sync / barrier.arrive, sm_70: barrier `id` (1 to 15; 0 is __syncthreads) among `threads` threads.
TESSERA_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
TESSERA_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

// setmaxnreg, sm_90a: registers a thread of this warpgroup may use from here on, a multiple of 8 in 24..256.
// Needs a register cap at entry, so write __launch_bounds__(threads, 1).
template <int kRegisters>
TESSERA_DEVICE void registers_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kRegisters)); }
template <int kRegisters>
TESSERA_DEVICE void registers_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kRegisters)); }

// elect.sync, sm_90: true in one lane of a converged warp.
TESSERA_DEVICE bool elect_one() {
  u32 elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }" : "=r"(elected));
  return elected;
}

// Clusters, sm_90.
TESSERA_DEVICE u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
TESSERA_DEVICE u32 cluster_size() {
  u32 size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
TESSERA_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
TESSERA_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
TESSERA_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// mapa: the address of `shared` in block `rank`, for the two accesses below.
TESSERA_DEVICE u32 cluster_address(u32 shared, u32 rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
TESSERA_DEVICE uint4 load_cluster(u32 address) {
  uint4 x;
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}
TESSERA_DEVICE void store_cluster(u32 address, uint4 x) {
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

}  // namespace tessera
