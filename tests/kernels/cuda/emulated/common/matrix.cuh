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

}  // namespace tessera
