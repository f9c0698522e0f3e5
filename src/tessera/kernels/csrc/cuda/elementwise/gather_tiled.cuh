// Rows of an 8-bit table that lies as weight tiles do: one copy serves an embedding and the head tied to it.
#pragma once
#include "common/tiled.cuh"
#include "elementwise/rows.cuh"

namespace tessera {

// tiles [vocab / 64][steps][64 rows][128 bytes] (kernels/cuda/gemm/weights.py), scale [vocab], ids [rows] (Id: i32 or
// i64) -> out [rows, width] of T; grid = rows. A value is code * scale in fp32, rounded once.
// An id outside the table gives a row of NaN, which the check of the logits reports, instead of a fault.
template <class T, class Id>
__global__ void gather_tiled(const i8* tiles, const float* scale, const Id* ids, T* out, int width, int vocab) {
  constexpr int kPanel = 64;
  await_predecessor();
  const i64 row = blockIdx.x, id = ids[row];
  const bool known = id >= 0 && id < vocab;
  const int steps = div_up(width, kStep), r = known ? static_cast<int>(id % kPanel) : 0;
  const i8* panel = tiles + (known ? id / kPanel : 0) * steps * (kPanel * kStep) + r * kStep;
  const float s = known ? scale[id] : __int_as_float(0x7fffffff);
  for (int vec = threadIdx.x; vec < width / kLane; vec += blockDim.x) {
    const int column = vec * kLane, chunk = column % kStep / 16 ^ r % 8;
    const i8* tile = panel + column / kStep * (kPanel * kStep);
    const uint2 codes = *reinterpret_cast<const uint2*>(tile + chunk * 16 + column % 16);
    Floats8 v;
#pragma unroll
    for (int i = 0; i < kLane; ++i) v[i] = static_cast<i8>((i < 4 ? codes.x : codes.y) >> i % 4 * 8) * s;
    reinterpret_cast<uint4*>(out + row * width)[vec] = pack8<T>(v);
  }
}

}  // namespace tessera
