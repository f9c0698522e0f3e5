// Copies, barriers, clusters and dependent launches, each used once; compared with torch by `tests/kernels/cuda`.
#pragma once
#include "common/bulk.cuh"
#include "common/mbarrier.cuh"
#include "common/sync.cuh"
#include "common/types.cuh"

namespace tessera::check {

// y = x (kAdd: y += x) over `chunks` of 2 KB a block through a ring of 3 stages: thread 0 fills, everyone waits and
// touches the stage (adding `bias` to each word), thread 0 stores it. 64 threads.
template <bool kAdd>
__global__ void bulk_ring(const u32* x, u32* y, u32 bias, int chunks) {
  constexpr int kStages = 3, kWords = 512, kBytes = kWords * 4;
  __shared__ __align__(128) u32 stage[kStages][kWords];
  __shared__ u64 full[kStages], empty[kStages];
  const bool leader = threadIdx.x == 0;
  x += blockIdx.x * chunks * kWords, y += blockIdx.x * chunks * kWords;
  if (leader) {
    for (int s = 0; s < kStages; ++s)
      mbarrier_init(smem_address(&full[s]), 1), mbarrier_init(smem_address(&empty[s]), 64);
    fence_barrier_init();
  }
  __syncthreads();
  const u64 policy = policy_evict_first();
  const auto fill = [&](int c) {
    const u32 barrier = smem_address(&full[c % kStages]);
    mbarrier_arrive_expect(barrier, kBytes);
    if (c % 2) bulk_load(smem_address(stage[c % kStages]), x + c * kWords, kBytes, barrier);
    else bulk_load(smem_address(stage[c % kStages]), x + c * kWords, kBytes, barrier, policy);
  };
  if (leader) {
    for (int c = 0; c < kStages && c < chunks; ++c) fill(c);
    for (int c = kStages; c < chunks; ++c) bulk_prefetch(x + c * kWords, kBytes);
  }
  for (int c = 0; c < chunks; ++c) {
    const int s = c % kStages, parity = c / kStages % 2;
    mbarrier_wait(smem_address(&full[s]), parity);
    for (int i = threadIdx.x; i < kWords; i += 64) stage[s][i] += bias;
    fence_async();
    mbarrier_arrive(smem_address(&empty[s]));
    if (leader) {
      mbarrier_wait(smem_address(&empty[s]), parity);
      if constexpr (kAdd) bulk_add_s32(y + c * kWords, smem_address(stage[s]), kBytes);
      else bulk_store(y + c * kWords, smem_address(stage[s]), kBytes);
      bulk_commit();
      bulk_wait_read<0>();
      if (c + kStages < chunks) fill(c + kStages);
    }
  }
  if (leader) bulk_wait<0>();
}

// Cluster of 2. y[block][0..31]: what the neighbour put in its own memory; [32..63]: what it stored into ours;
// [64..95]: a row of x that block 0 multicast to both. 32 threads a block; y [blocks, 96] of uint4.
__global__ void cluster_exchange(const uint4* x, uint4* y) {
  __shared__ __align__(128) uint4 mine[32], theirs[32], shared_row[32];
  __shared__ u64 arrived, landed;
  const int lane = lane_id();
  const u32 rank = cluster_rank(), other = rank ^ 1;
  if (lane == 0) {
    mbarrier_init(smem_address(&arrived), 32);
    mbarrier_init(smem_address(&landed), 1);
    fence_barrier_init();
    mbarrier_arrive_expect(smem_address(&landed), sizeof(shared_row));
  }
  const u32 id = blockIdx.x * 32 + lane;
  mine[lane] = make_uint4(id, id * 3, id * 5, cluster_size());
  cluster_sync();
  if (rank == 0 && elect_one()) {
    bulk_load_multicast(smem_address(shared_row), x + blockIdx.x / 2 * 32, sizeof(shared_row), smem_address(&landed),
                        3);
  }
  y[blockIdx.x * 96 + lane] = load_cluster(cluster_address(smem_address(&mine[lane]), other));
  store_cluster(cluster_address(smem_address(&theirs[lane]), other), make_uint4(id, id + 1, id + 2, id + 3));
  mbarrier_arrive_remote(smem_address(&arrived), other);
  mbarrier_wait(smem_address(&arrived), 0);
  cluster_sync();
  y[blockIdx.x * 96 + 32 + lane] = theirs[lane];
  mbarrier_wait(smem_address(&landed), 0);
  y[blockIdx.x * 96 + 64 + lane] = shared_row[lane];
  cluster_sync();
}

// y[i] = 3 x[i] + step, after the preceding launch of the stream.
__global__ void dependent_step(const u32* x, u32* y, u32 step, int n) {
  grid_launch_dependents();
  grid_dependency_wait();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 3 * x[i] + step;
}

// Warpgroup 0 gives registers up, warpgroup 1 takes them and sums 96 columns held at once. x [96, 128], y [128].
__global__ void __launch_bounds__(256, 1) register_exchange(const u32* x, u32* y) {
  __shared__ u32 half[128];
  if (threadIdx.x < 128) {
    registers_shrink<40>();
    half[threadIdx.x] = x[threadIdx.x];
    named_barrier_arrive(1, 256);
  } else {
    registers_grow<200>();
    const int column = threadIdx.x - 128;
    u32 v[96], sum = 0;
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = x[i * 128 + column];
#pragma unroll
    for (int i = 0; i < 96; ++i) sum += v[i] * (i + 1);
    named_barrier_sync(1, 256);
    y[column] = sum + half[column];
  }
}

}  // namespace tessera::check
