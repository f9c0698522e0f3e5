#pragma once
#include "common/types.cuh"

namespace tessera {

// m16n8k32.row.col.s32.{u8,s8}.s8: csrc/cuda/common/mma.cuh says who holds what.
template <class A>
void mma_16832(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  emulated::exchange(mine, [&](const auto& words) {
    for (int e = 0; e < 4; ++e) {
      const int row = lane_id() / 4 + 8 * (e / 2), column = 2 * (lane_id() % 4) + e % 2;
      for (int k = 0; k < 32; ++k) {
        const int half = k / 16, t = k % 16 / 4, shift = 8 * (k % 4);
        const A x = static_cast<A>(words[row % 8 * 4 + t][2 * half + row / 8] >> shift);
        const i8 y = static_cast<i8>(words[column * 4 + t][4 + half] >> shift);
        d[e] += static_cast<i32>(x) * y;
      }
    }
  });
}

// m16n8k16.row.col.f32.{f16,bf16}
template <class T>
void mma_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  emulated::exchange(mine, [&](const auto& words) {
    for (int e = 0; e < 4; ++e) {
      const int row = lane_id() / 4 + 8 * (e / 2), column = 2 * (lane_id() % 4) + e % 2;
      for (int k = 0; k < 16; ++k) {
        const int half = k / 8, t = k % 8 / 2, shift = 16 * (k % 2);
        const float x = to_float(T{static_cast<u16>(words[row % 8 * 4 + t][2 * half + row / 8] >> shift)});
        const float y = to_float(T{static_cast<u16>(words[column * 4 + t][4 + half] >> shift)});
        d[e] += x * y;
      }
    }
  });
}

}  // namespace tessera
