#pragma once
#include "common/types.cuh"

namespace tessera {

// Lane 8 i + r gives the address of row r of matrix i; lane l gets words l % 4 of rows l / 4.
inline void ldmatrix(u32 (&d)[4], u32 row) {
  const u32 mine[1] = {row};
  emulated::exchange(mine, [&](const auto& words) {
    for (int i = 0; i < 4; ++i) d[i] = load_shared_word(words[8 * i + lane_id() / 4][0] + lane_id() % 4 * 4);
  });
}

// The other way, each matrix transposed: lane l has elements (l / 4, 2 (l % 4)) and the next of each before.
inline void stmatrix_trans(u32 row, const u32 (&d)[4]) {
  const u32 mine[5] = {d[0], d[1], d[2], d[3], row};
  emulated::exchange(mine, [&](const auto& words) {
    const int matrix = lane_id() / 8, r = lane_id() % 8;
    for (int column = 0; column < 8; ++column) {
      const u32 word = words[column * 4 + r / 2][matrix];
      const u16 element = static_cast<u16>(word >> 16 * (r % 2));
      memcpy(emulated::shared + row + column * 2, &element, 2);
    }
  });
}

}  // namespace tessera
