// y = x W^T + b with int8 activations and 4- or 8-bit weights: exact int32 sums, then
// y = (float(sum) * x_scale) * w_scale + bias, each operation rounded to float32.
//
// Weights lie in blocks of 16 output rows ("n16k4"): 4 consecutive k of each of the 16 rows make 64 bytes, so
// one vector holds 4 products of every row and x is broadcast: no horizontal sums, any number of rows of x.
// 4-bit codes put two such groups of 4 k into the low and high nibbles of 64 bytes.
//
// With 4-bit codes q and a group's integer scale s and zero z:
//     sum (q - z) s x  =  s * (sum q x  -  z * sum x)
// so nothing is dequantized per weight and q stays unsigned, as the 8-bit dot instructions want it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "pool.h"
#include "simd.h"

namespace tessera {

constexpr int kLanes = 16;  // output rows per block

enum WeightKind : int64_t { kW8 = 0, kW4Group = 1, kW4Channel = 2 };

struct IntLinear {  // mirrored by `IntLinearDescriptor` in kernels/cpu/linear_int.py
  int64_t kind;
  int64_t n, k, k_padded;  // k_padded: a multiple of 8 (4-bit) or 4; codes beyond k are 0
  int64_t group, groups;   // k per group, the last one may be shorter; k_padded and 1 without groups
  const uint8_t* codes;    // [blocks][k_padded / 8][64] nibbles, or [blocks][k_padded / 4][64] bytes of w + 128
  const uint8_t* group_scale;  // [blocks][groups][16], kW4Group only
  const uint8_t* group_zero;   // [blocks][groups][16], 4-bit only
  const float* scale;          // [blocks * 16]
  const float* bias;           // [blocks * 16] or null

  int64_t blocks() const { return (n + kLanes - 1) / kLanes; }
  int64_t block_bytes() const { return k_padded * (kind == kW8 ? kLanes : kLanes / 2); }
};

struct Rows {  // int8 activations; rows of codes are `stride` bytes apart and readable up to k_padded
  const int8_t* codes;
  int64_t stride, count;
  const float* scale;
  const int32_t* row_sum;
  const int32_t* group_sum;  // [count][groups] sums of codes over each group, 4-bit groups only
};

// Exact sums of one block of outputs and R rows of x, for each architecture.
template <int R>
void int_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int32_t (*sums)[kLanes]);

// Writes y[row] of one block from its exact sums.
inline void finish_int(const IntLinear& w, int64_t block, const Rows& x, int64_t row, const int32_t* sums, float* y) {
  using namespace simd;
  const int64_t first = block * kLanes;
  const bool whole = first + kLanes <= w.n;
  float partial[kLanes];
  float* out = whole ? y + row * w.n + first : partial;
  for (int i = 0; i < kLanes; i += W) {
    F value = to_float(load_int(sums + i)) * set(x.scale[row]) * load(w.scale + first + i);
    if (w.bias) value = value + load(w.bias + first + i);
    store(out + i, value);
  }
  if (!whole) memcpy(y + row * w.n + first, partial, sizeof(float) * (w.n - first));
}

// Rows row..row+R-1 of one block.
template <int R>
void int_tile(const IntLinear& w, int64_t block, const Rows& x, int64_t row, float* y) {
  alignas(64) int32_t sums[R][kLanes];
  // Output lines are asked for before the sums: their misses, one row after the other, would cost more.
  for (int r = 0; r < R; ++r) __builtin_prefetch(y + (row + r) * w.n + block * kLanes, 1);
  int_block<R>(w, block, x, row, sums);
  for (int r = 0; r < R; ++r) finish_int(w, block, x, row + r, sums[r], y);
}

// Sums of the codes of every group of every row.
inline const int32_t* group_sums(const IntLinear& w, const int8_t* codes, int64_t stride, int64_t rows) {
  int32_t* sums = scratch<0, int32_t>(rows * w.groups);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < w.groups; ++g) {
      const int8_t* x = codes + r * stride;
      int32_t sum = 0;
      for (int64_t k = g * w.group; k < std::min((g + 1) * w.group, w.k); ++k) sum += x[k];
      sums[r * w.groups + g] = sum;
    }
  }
  return sums;
}

// Copies rows with zeros up to k_padded where k is not a multiple of 4 or 8.
inline const int8_t* pad_rows(const IntLinear& w, const int8_t* codes, int64_t rows) {
  int8_t* padded = scratch<1, int8_t>(rows * w.k_padded);
  for (int64_t r = 0; r < rows; ++r) {
    memcpy(padded + r * w.k_padded, codes + r * w.k, w.k);
    memset(padded + r * w.k_padded + w.k, 0, w.k_padded - w.k);
  }
  return padded;
}

}  // namespace tessera
