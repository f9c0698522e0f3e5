// Rows of a table.
#pragma once
#include "common/types.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

// table [vocab, width] of 16-bit elements, ids [rows] (Id: i32 or i64) -> out [rows, width]; grid = rows.
// An id outside the table gives a row of NaN, which the check of the logits reports, instead of a fault.
template <class Id>
__global__ void gather_rows(const u16* table, const Id* ids, u16* out, int width, int vocab) {
  await_predecessor();
  const i64 row = blockIdx.x;
  const i64 id = ids[row];
  const bool known = id >= 0 && id < vocab;
  const uint4 nan = make_uint4(0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu);
  uint4* to = reinterpret_cast<uint4*>(out + row * width);
  for (int vec = threadIdx.x; vec < width / 8; vec += blockDim.x)
    to[vec] = known ? load_nc(table + id * width + vec * 8) : nan;
}

}  // namespace tessera
