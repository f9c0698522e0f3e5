// Sequences of a step as device memory describes them, and finding one's share of the work in them without the host.
#pragma once
#include "common/base.cuh"

namespace tessera {

template <class Int>
struct BatchOf {
  const Int* cu_seqlens;    // [seqs + 1] query tokens before each sequence
  const Int* context_lens;  // [seqs] tokens in the cache
  int seqs;

  TESSERA_DEVICE int query_len(int s) const { return cu_seqlens[s + 1] - cu_seqlens[s]; }
};
using Batch = BatchOf<i32>;
// For a kernel that reads it before it waits (elementwise/dependency.cuh) and must not find an old line in L1.
using EarlyBatch = BatchOf<volatile i32>;

struct Share {
  int seq;     // sequence that holds the unit
  int offset;  // units between the sequence's first and this one
};

// Work in units of which sequence s has weight(s), all sequences' in one line. Made by a whole block; kThreads / 32
// ints of shared memory are `scratch`.
template <int kThreads, class Weight>
struct Line {
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kEach = 4;  // sequences a thread takes: their lengths come from memory in one wait
  static constexpr int kSpan = kThreads * kEach;
  Weight weight;
  int seqs;
  i32* scratch;

  // Units of this thread's sequences, first + kEach * i and on, those before them, and all of kSpan sequences.
  struct Chunk {
    int units[kEach];
    int begin, total;
  };
  TESSERA_DEVICE Chunk scan(int first) const {
    Chunk chunk;
    int mine = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int s = first + static_cast<int>(threadIdx.x) * kEach + j;
      chunk.units[j] = s < seqs ? weight(s) : 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) mine += chunk.units[j];
    int end = mine;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, end, d);
      if (lane_id() >= d) end += left;
    }
    __syncthreads();
    if (lane_id() == kWarp - 1) scratch[threadIdx.x / kWarp] = end;
    __syncthreads();
    chunk.total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == threadIdx.x / kWarp) end += chunk.total;
      chunk.total += scratch[w];
    }
    chunk.begin = end - mine;
    return chunk;
  }

  // All units, and the share of unit choose(all), both for every thread; the share is in shared memory. A unit that
  // does not exist has none. A batch of at most kSpan sequences is read once.
  template <class Choose>
  TESSERA_DEVICE int locate(Choose choose, Share* share) const {
    Chunk chunk = scan(0);
    int total = chunk.total;
    for (int first = kSpan; first < seqs; first += kSpan) total += scan(first).total;
    const int unit = choose(total);
    int before = 0;
    for (int first = 0;;) {
      int offset = unit - before - chunk.begin;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (0 <= offset && offset < chunk.units[j])
          *share = {first + static_cast<int>(threadIdx.x) * kEach + j, offset};
        offset -= chunk.units[j];
      }
      before += chunk.total;
      first += kSpan;
      if (first >= seqs || before > unit) break;
      chunk = scan(first);
    }
    __syncthreads();
    return total;
  }
};

template <int kThreads, class Weight>
TESSERA_DEVICE Line<kThreads, Weight> line_of(Weight weight, int seqs, i32* scratch) {
  return {weight, seqs, scratch};
}

}  // namespace tessera
