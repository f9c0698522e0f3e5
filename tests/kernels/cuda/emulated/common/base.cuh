// CUDA kernels as ordinary C++: this folder stands before csrc/cuda on the include path, and its headers replace those
// that wrap machine instructions. Every thread of a block is a thread here, warp instructions exchange operands between
// barriers, the copy engine copies at once. For the logic of kernels where no GPU is, not for their speed or races.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __align__(n)
#define __grid_constant__
#define __launch_bounds__(...)
#define TESSERA_DEVICE inline
#define __CUDA_ARCH__ 900

struct Index {
  unsigned x;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct int4 {
  int x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline thread_local Index threadIdx, blockIdx;
inline Index gridDim;

namespace tessera {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr int div_up(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return div_up(a, b) * b; }
template <class A, class B>
struct is_same { static constexpr bool value = false; };
template <class A>
struct is_same<A, A> { static constexpr bool value = true; };
inline int lane_id() { return threadIdx.x % kWarp; }
inline int warp_id() { return threadIdx.x / kWarp; }
inline int thread_now() { return threadIdx.x; }

namespace gemm {
alignas(1024) inline u8 smem[232448];  // what kernels there declare as their dynamic shared memory
}
namespace half {
extern u8 smem[232448] asm("_ZN7tessera4gemm4smemE");  // the same, for those here
}

namespace emulated {

inline u8* const shared = gemm::smem;
constexpr int kSharedBytes = sizeof(gemm::smem);

struct Warp {
  std::barrier<> barrier{kWarp};
  u32 words[kWarp][8];
};
inline std::vector<std::unique_ptr<Warp>> warps;
inline std::unique_ptr<std::barrier<>> block;
inline std::unique_ptr<std::barrier<>> named[16];
inline std::mutex mutex;

// Lanes show up to eight words each; `read` then looks at anyone's.
template <int N, class F>
void exchange(const u32 (&mine)[N], F read) {
  Warp& warp = *warps[warp_id()];
  std::copy(mine, mine + N, warp.words[lane_id()]);
  warp.barrier.arrive_and_wait();
  read(warp.words);
  warp.barrier.arrive_and_wait();
}

// Runs `kernel` block by block, in another order each time; dynamic shared memory begins as rubbish.
template <class F>
void launch(int grid, int threads, F kernel) {
  static std::mt19937 random;
  std::vector<unsigned> order(grid);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  gridDim.x = grid;
  for (unsigned i : order) {
    std::fill(shared, shared + kSharedBytes, u8(0xcd));
    warps.clear();
    for (int w = 0; w < threads / kWarp; ++w) warps.push_back(std::make_unique<Warp>());
    block = std::make_unique<std::barrier<>>(threads);
    for (auto& barrier : named) barrier.reset();
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([=] {
        threadIdx.x = t, blockIdx.x = i;
        kernel();
      });
    }
    for (std::thread& thread : all) thread.join();
  }
}

}  // namespace emulated

inline u32 smem_address(const void* p) { return static_cast<u32>(static_cast<const u8*>(p) - emulated::shared); }

}  // namespace tessera

using std::max;
using std::min;
inline void __syncthreads() { tessera::emulated::block->arrive_and_wait(); }
inline void __syncwarp() { tessera::emulated::warps[tessera::warp_id()]->barrier.arrive_and_wait(); }
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  static_assert(sizeof(T) == 4);
  uint32_t word[1];
  memcpy(word, &x, 4);
  tessera::emulated::exchange(word, [&](const auto& words) { memcpy(&x, &words[lane % 32][0], 4); });
  return x;
}
inline uint32_t __ballot_sync(unsigned, bool x) {
  uint32_t all = 0;
  const uint32_t word[1] = {x};
  tessera::emulated::exchange(word, [&](const auto& words) {
    for (int i = 0; i < 32; ++i) all |= words[i][0] << i;
  });
  return all;
}
inline float __uint_as_float(uint32_t x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t y;
  memcpy(&y, &x, 4);
  return y;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
template <class T>
T __ldcg(const T* p) { return *p; }
