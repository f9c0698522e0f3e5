// Sequences of a step as device memory describes them, and finding one's share of the work in them without the host.
#pragma once
#include "common/reduce.cuh"

namespace tessera {

struct Batch {
  const i32* cu_seqlens;    // [seqs + 1] query tokens before each sequence
  const i32* context_lens;  // [seqs] tokens in the cache
  int seqs;

  TESSERA_DEVICE int query_len(int s) const { return cu_seqlens[s + 1] - cu_seqlens[s]; }
};

struct Share {
  int seq;     // sequence that holds the unit
  int offset;  // units between the sequence's first and this one
};

// Sum of weight(s) over all sequences, for every thread of a block. `scratch`: kThreads / 32 ints of shared memory.
template <int kThreads, class Weight>
TESSERA_DEVICE int total_units(Weight weight, int seqs, i32* scratch) {
  i32 sum = 0;
  for (int s = threadIdx.x; s < seqs; s += kThreads) sum += weight(s);
  return block_reduce<kThreads>(sum, Sum{}, scratch);
}

// The sequence that holds unit `unit`, where sequence s has weight(s) of them, in order. The unit must exist.
// `scratch`: kThreads / 32 ints of shared memory; `found`: one Share.
template <int kThreads, class Weight>
TESSERA_DEVICE Share locate_unit(Weight weight, int seqs, int unit, i32* scratch, Share* found) {
  constexpr int kWarps = kThreads / kWarp;
  int before = 0;
  for (int first = 0; first < seqs && before <= unit; first += kThreads) {
    const int s = first + threadIdx.x;
    const int mine = s < seqs ? weight(s) : 0;
    int end = mine;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, end, d);
      if (lane_id() >= d) end += left;
    }
    __syncthreads();
    if (lane_id() == kWarp - 1) scratch[threadIdx.x / kWarp] = end;
    __syncthreads();
    int chunk = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == threadIdx.x / kWarp) end += before + chunk;
      chunk += scratch[w];
    }
    if (end - mine <= unit && unit < end) *found = {s, unit - (end - mine)};
    before += chunk;
  }
  __syncthreads();
  return *found;
}

}  // namespace tessera
