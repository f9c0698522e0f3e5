#pragma once
#include "common/base.cuh"

namespace tessera {

template <int i>
u32 broadcast_byte(u32 x) { return (x >> 8 * i & 0xff) * 0x01010101u; }

}  // namespace tessera
