// Where int8 activations lie: tiles of 8 tokens by 128 columns, 1024 bytes, under the 128-byte swizzle. The tiles of a
// step of 128 columns follow one another by token (kernels/cuda/tiled_rows.py).
#pragma once
#include "common/base.cuh"

namespace tessera {

constexpr int kAtom = 8;    // tokens of a tile
constexpr int kStep = 128;  // columns of a tile

// Byte of (token, column); `atoms` is div_up(tokens, kAtom).
TESSERA_DEVICE i64 tiled_offset(u32 token, u32 column, u32 atoms) {
  const u32 row = token % kAtom, chunk = column % kStep / 16;
  const i64 tile = static_cast<i64>(column / kStep) * atoms + token / kAtom;
  return tile * (kAtom * kStep) + row * kStep + (chunk ^ row) * 16 + column % 16;
}

}  // namespace tessera
