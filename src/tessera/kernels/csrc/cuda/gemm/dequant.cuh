// From packed weights to operand A of the integer GEMMs, and from their sums to numbers. What lies where:
// kernels/cuda/gemm/weights.py.
#pragma once
#include "common/bits.cuh"
#include "common/types.cuh"

namespace tessera::gemm {

constexpr int kRows = 64;  // of a weight tile; its columns are kStep of common/tiled.cuh
constexpr int kCodeBytes = 4096, kParameterBytes = 128;  // 4-bit codes of a tile, parameters of one of its groups

// How a weight tile is stored. kGroup: columns of a group (32, 64 or 128), 0 where a row has one scale. kTogether: how
// many tiles of a step lie together.
template <int kGroup_>
struct Int4 {
  static constexpr int kBits = 4, kGroup = kGroup_, kGroups = kGroup ? 128 / kGroup : 0;
  static constexpr int kTileBytes = kCodeBytes + kGroups * kParameterBytes, kTogether = 1;
};
struct Int8 {
  static constexpr int kBits = 8, kGroup = 0, kGroups = 0, kTileBytes = 8192, kTogether = 1;
};

// What makes operands of the codes of a thread's two rows (g and g + 8 of its warp's 16) in one group.
struct RowPair {
  u32 scale[2], offset[2];
};

// `word`: scale and b of the first row, then of the second; byte 32 w + 4 g of the group's parameters (warp w).
// An operand is code * scale + (b - 127) in 0..255, so lanes of a word never borrow for good: all mod 2^32.
TESSERA_DEVICE RowPair row_pair(u32 word) {
  return {{word & 0xff, word >> 16 & 0xff},
          {broadcast_byte<1>(word) - 0x7f7f7f7fu, broadcast_byte<3>(word) - 0x7f7f7f7fu}};
}

// Operand A of mma.sync and wgmma for k = 32 (a[0], a[2]: row g; a[1], a[3]: row g + 8) out of the two words of those
// rows. Without groups the operand is the code. AND, SHR, AND, and two multiply-adds for 8 weights.
template <bool kScaled>
TESSERA_DEVICE void unpack(u32 (&a)[4], u32 first, u32 second, const RowPair& p) {
  a[0] = first & 0x0F0F0F0Fu, a[2] = (first >> 4) & 0x0F0F0F0Fu;
  a[1] = second & 0x0F0F0F0Fu, a[3] = (second >> 4) & 0x0F0F0F0Fu;
  if constexpr (kScaled) {
    a[0] = a[0] * p.scale[0] + p.offset[0], a[2] = a[2] * p.scale[0] + p.offset[0];
    a[1] = a[1] * p.scale[1] + p.offset[1], a[3] = a[3] * p.scale[1] + p.offset[1];
  }
}

// y of one row and token: every integer GEMM ends in exactly these roundings, whatever kernel and split computed `sum`.
TESSERA_DEVICE float finish(i32 sum, i32 offset, i32 row_sum, float row_scale, float token_scale, float bias) {
  return __fmaf_rn(static_cast<float>(sum - offset * row_sum), __fmul_rn(row_scale, token_scale), bias);
}

}  // namespace tessera::gemm
