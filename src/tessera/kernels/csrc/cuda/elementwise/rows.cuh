// Rows held in registers: a block owns one row, thread i its vectors i, i + kThreads, ... of eight elements.
#pragma once
#include "common/types.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

constexpr int kLane = 8;  // elements a vector: 16 bytes of a 16-bit type

struct Floats8 {
  float v[kLane];
  TESSERA_DEVICE float& operator[](int i) { return v[i]; }
  TESSERA_DEVICE float operator[](int i) const { return v[i]; }
};

template <class T>
TESSERA_DEVICE Floats8 unpack8(uint4 x) {
  const float2 a = unpack2<T>(x.x), b = unpack2<T>(x.y), c = unpack2<T>(x.z), d = unpack2<T>(x.w);
  return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}

template <class T>
TESSERA_DEVICE uint4 pack8(const Floats8& x) {
  return make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7]));
}

}  // namespace tessera
