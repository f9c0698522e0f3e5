// Pages of a 16-bit KV cache. A page holds 64 tokens: for each KV head one contiguous slice, K [64, D] then V [64, D].
#pragma once
#include "common/types.cuh"

namespace tessera {

// Rows lie in the order the token slots have; the 16-byte chunks of a row are permuted by the row (xor with its low
// three bits), so that a slice can be copied to shared memory as it is and read by ldmatrix without bank conflicts.
template <class T, int kHeadDim>
struct Page16 {
  using Element = T;
  static constexpr int kTokens = 64;
  static constexpr int kDim = kHeadDim;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kPartBytes = kTokens * kRowBytes;   // K or V of a slice
  static constexpr int kSliceBytes = 2 * kPartBytes;
  static_assert(kDim % 64 == 0, "a row is a whole number of 128-byte lines");

  // Bytes from the start of K or V to 16-byte chunk `chunk` of `row`.
  TESSERA_DEVICE static int chunk_offset(int row, int chunk) { return row * kRowBytes + (chunk ^ (row & 7)) * 16; }

  // Slice of KV head `head` of `page`.
  TESSERA_DEVICE static i64 slice_offset(i64 page, int head, int kv_heads) {
    return (page * kv_heads + head) * kSliceBytes;
  }
};

}  // namespace tessera
