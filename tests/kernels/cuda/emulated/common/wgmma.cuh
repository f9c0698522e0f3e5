#pragma once
#include "common/types.cuh"

namespace tessera {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int>
void wgmma_wait() { __syncwarp(); }  // no lane is ahead of what others still read
template <class T, int N>
void keep(T (&)[N]) {}

inline u32 swizzle_128b(u32 offset) { return offset ^ (offset >> 3 & 0x70); }
inline u64 wgmma_descriptor(u32 shared) { return shared; }
inline u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + bytes; }
inline i8 operand_byte(u64 descriptor, int row, int k) {
  return static_cast<i8>(emulated::shared[swizzle_128b(static_cast<u32>(descriptor) + row * 128 + k)]);
}

// Done at once: csrc/cuda/common/wgmma.cuh says who holds what. Integers: k = 32.
template <class A, int N>
struct IntegerWgmma {
  static void rs(i32 (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate = true) {
    A rows[2][32];
    emulated::exchange(a, [&](const auto& words) {
      for (int k = 0; k < 32; ++k) {
        const u32* from = words[lane_id() / 4 * 4 + k % 16 / 4] + k / 16 * 2;
        for (int h = 0; h < 2; ++h) rows[h][k] = static_cast<A>(from[h] >> 8 * (k % 4));
      }
    });
    multiply(d, rows, b, accumulate);
  }
  static void ss(i32 (&d)[N / 2], u64 a, u64 b, bool accumulate = true) {
    A rows[2][32];
    const int row = threadIdx.x % kWarpgroup / kWarp * 16 + lane_id() / 4;
    for (int k = 0; k < 32; ++k)
      for (int h = 0; h < 2; ++h) rows[h][k] = static_cast<A>(operand_byte(a, row + 8 * h, k));
    multiply(d, rows, b, accumulate);
  }

 private:
  static void multiply(i32 (&d)[N / 2], const A (&rows)[2][32], u64 b, bool accumulate) {
    for (int i = 0; i < N / 2; ++i) {
      const int column = i / 4 * 8 + lane_id() % 4 * 2 + i % 2, h = i % 4 / 2;
      i32 sum = accumulate ? d[i] : 0;
      for (int k = 0; k < 32; ++k) sum += static_cast<i32>(rows[h][k]) * operand_byte(b, column, k);
      d[i] = sum;
    }
  }
};

// k = 16
template <class A, int N>
struct FloatWgmma {
  static void rs(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate = true) {
    float rows[2][16];
    emulated::exchange(a, [&](const auto& words) {
      for (int k = 0; k < 16; ++k) {
        const u32* from = words[lane_id() / 4 * 4 + k % 8 / 2] + k / 8 * 2;
        for (int h = 0; h < 2; ++h) rows[h][k] = to_float(A{static_cast<u16>(from[h] >> 16 * (k % 2))});
      }
    });
    for (int i = 0; i < N / 2; ++i) {
      const int column = i / 4 * 8 + lane_id() % 4 * 2 + i % 2, h = i % 4 / 2;
      double sum = accumulate ? d[i] : 0;
      for (int k = 0; k < 16; ++k) {
        A x;
        memcpy(&x, emulated::shared + swizzle_128b(static_cast<u32>(b) + column * 128 + k * 2), 2);
        sum += static_cast<double>(rows[h][k]) * to_float(x);
      }
      d[i] = static_cast<float>(sum);
    }
  }
};
template <class A, int N>
struct Wgmma : IntegerWgmma<A, N> {};
template <int N>
struct Wgmma<f16, N> : FloatWgmma<f16, N> {};
template <int N>
struct Wgmma<bf16, N> : FloatWgmma<bf16, N> {};

}  // namespace tessera
