// Integer names, the two function macros and address conversion. Every other header starts here.
// Nothing of the CUDA toolkit is included anywhere: NVRTC's built-ins are enough.
#pragma once

#define TESSERA_DEVICE __device__ __forceinline__

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

constexpr TESSERA_DEVICE int div_up(int a, int b) { return (a + b - 1) / b; }
constexpr TESSERA_DEVICE int round_up(int a, int b) { return div_up(a, b) * b; }

template <class A, class B>
struct is_same { static constexpr bool value = false; };
template <class A>
struct is_same<A, A> { static constexpr bool value = true; };

TESSERA_DEVICE int lane_id() { return threadIdx.x % kWarp; }

// threadIdx.x anew: nothing computed from it is kept in registers from before.
TESSERA_DEVICE int thread_now() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread) :: "memory");
  return thread;
}

// The warp's index as the compiler can prove it uniform: branches on it do not diverge.
TESSERA_DEVICE int warp_id() { return __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0); }

// Address in the shared window, as all shared-memory PTX below takes it.
TESSERA_DEVICE u32 smem_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

}  // namespace tessera
