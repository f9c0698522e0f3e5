// Pages of a 16-bit KV cache. A page holds 64 tokens: for each KV head one contiguous slice, K [64, D] then V [64, D].
#pragma once
#include "common/types.cuh"

namespace tessera {

// K and V are panels of 64 elements of the head dimension: rows of 128 bytes, one a token slot, in the order of slots,
// with the 16-byte chunks of a row permuted by the row (xor with its low three bits). A slice can so be copied to
// shared memory as it is, read by ldmatrix without bank conflicts, and by wgmma under its 128-byte swizzle.
template <class T, int kHeadDim>
struct Page16 {
  using Element = T;
  static constexpr int kTokens = 64;
  static constexpr int kDim = kHeadDim;
  static constexpr int kRowBytes = 128;
  static constexpr int kPanels = kDim / 64;
  static constexpr int kPanelBytes = kTokens * kRowBytes;
  static constexpr int kPartBytes = kPanels * kPanelBytes;  // K or V of a slice
  static constexpr int kSliceBytes = 2 * kPartBytes;
  static_assert(kDim % 64 == 0, "a head is a whole number of panels");

  // Bytes from the start of K or V to 16-byte chunk `chunk` of token slot `row`.
  TESSERA_DEVICE static int chunk_offset(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
  }

  // Slice of KV head `head` of `page`.
  TESSERA_DEVICE static i64 slice_offset(i64 page, int head, int kv_heads) {
    return (page * kv_heads + head) * kSliceBytes;
  }
};

}  // namespace tessera
