// A line of units of work in equal pieces, one a block.
#pragma once
#include "common/base.cuh"

namespace tessera {

// Units cut into pieces of `least` units, the first `longer` of them of one more.
struct Cut {
  int pieces, least, longer;
  TESSERA_DEVICE static Cut of(int units, int most) {
    const u32 pieces = max(1, min(units, most)), least = static_cast<u32>(units) / pieces;
    return {static_cast<int>(pieces), static_cast<int>(least), units - static_cast<int>(least * pieces)};
  }
  // First unit of a piece (that of `pieces` is the line's end, and there are none beyond), and the piece of a unit.
  TESSERA_DEVICE int start(int piece) const { return piece * least + min(piece, longer); }
  TESSERA_DEVICE int piece_of(int unit) const {
    const int rest = unit - longer * (least + 1);
    return rest < 0 ? static_cast<u32>(unit) / static_cast<u32>(least + 1)
                    : longer + static_cast<u32>(rest) / static_cast<u32>(least);
  }
};

}  // namespace tessera
