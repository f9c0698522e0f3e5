// Reductions over a warp, part of a warp, and a block. Every participating thread receives the result.
#pragma once
#include "common/base.cuh"

namespace tessera {

struct Sum {
  template <class T>
  TESSERA_DEVICE static T identity() { return T(0); }
  template <class T>
  TESSERA_DEVICE T operator()(T a, T b) const { return a + b; }
};
// Of values that are not negative, as absolute maxima are.
struct AbsMax {
  template <class T>
  TESSERA_DEVICE static T identity() { return T(0); }
  template <class T>
  TESSERA_DEVICE T operator()(T a, T b) const { return max(a, b); }
};
struct Max {
  template <class T>
  TESSERA_DEVICE static T identity() {
    if constexpr (is_same<T, float>::value) return __int_as_float(0xff800000);
    else return T(1) << (sizeof(T) * 8 - 1);
  }
  template <class T>
  TESSERA_DEVICE T operator()(T a, T b) const { return max(a, b); }
};
struct Min {
  template <class T>
  TESSERA_DEVICE static T identity() {
    if constexpr (is_same<T, float>::value) return __int_as_float(0x7f800000);
    else return ~(T(1) << (sizeof(T) * 8 - 1));
  }
  template <class T>
  TESSERA_DEVICE T operator()(T a, T b) const { return min(a, b); }
};

// Over groups of kLanes neighbouring lanes (a power of two). The order of additions is the same in every lane.
template <int kLanes = kWarp, class T, class Op>
TESSERA_DEVICE T warp_reduce(T x, Op op) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// Over a block of kThreads threads (a multiple of 32). `scratch` holds kThreads / 32 values of shared memory and
// may be used again right after: there is a barrier before the first write and one before the reads.
template <int kThreads, class T, class Op>
TESSERA_DEVICE T block_reduce(T x, Op op, T* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp, "a block is 1 to 32 whole warps");
  x = warp_reduce(x, op);
  if constexpr (kWarps == 1) return x;
  __syncthreads();
  if (lane_id() == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = lane_id() < kWarps ? scratch[lane_id()] : Op::template identity<T>();
  return warp_reduce(x, op);
}

// Four words of each lane of a quad, transposed: x[i] becomes what lane i of the quad had in x[its own lane].
TESSERA_DEVICE void quad_transpose(u32 (&x)[4]) {
  const bool odd = lane_id() & 1, upper = lane_id() & 2;
  const auto exchange = [](u32& low, u32& high, bool keeps_high, int lanes) {
    const u32 got = __shfl_xor_sync(0xffffffffu, keeps_high ? low : high, lanes);
    (keeps_high ? low : high) = got;
  };
  exchange(x[0], x[1], odd, 1);
  exchange(x[2], x[3], odd, 1);
  exchange(x[0], x[2], upper, 2);
  exchange(x[1], x[3], upper, 2);
}

}  // namespace tessera
