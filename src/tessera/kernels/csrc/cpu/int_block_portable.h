// Integer blocks in plain C++, for compilers to vectorise as they can.
#pragma once

#include "linear_int.h"

namespace tessera {

// sum[n] += scale[n] * (q . x) over `chunks` chunks of 8 k of a 4-bit block.
inline void nibble_dots(const uint8_t* codes, const int8_t* x, int64_t chunks, const int32_t* scale, int32_t* sum) {
  int32_t dots[kLanes] = {};
  for (int64_t c = 0; c < chunks; ++c, codes += 64, x += 8) {
    for (int n = 0; n < kLanes; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int code = codes[n * 4 + i];
        dots[n] += (code & 15) * x[i] + (code >> 4) * x[4 + i];
      }
    }
  }
  for (int n = 0; n < kLanes; ++n) sum[n] += scale[n] * dots[n];
}

inline void w4_row(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int32_t* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes();
  const int8_t* first = x.codes + row * x.stride;
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t start = g * w.group, size = std::min(w.group, w.k_padded - start);
    const bool grouped = w.kind == kW4Group;
    const int32_t total = grouped ? x.group_sum[row * w.groups + g] : x.row_sum[row];
    int32_t scale[kLanes];
    for (int n = 0; n < kLanes; ++n) {
      const int64_t at = (block * w.groups + g) * kLanes + n;
      scale[n] = grouped ? w.group_scale[at] : 1;
      sum[n] -= scale[n] * w.group_zero[at] * total;
    }
    nibble_dots(codes + start * 8, first + start, size / 8, scale, sum);
  }
}

inline void w8_row(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int32_t* sum) {
  const uint8_t* codes = w.codes + block * w.block_bytes();
  const int8_t* first = x.codes + row * x.stride;
  for (int64_t q = 0; q < w.k_padded / 4; ++q) {
    for (int n = 0; n < kLanes; ++n) {
      for (int i = 0; i < 4; ++i) sum[n] += (codes[q * 64 + n * 4 + i] - 128) * first[q * 4 + i];
    }
  }
}

template <int R>
void int_block(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int32_t (*sums)[kLanes]) {
  memset(sums, 0, R * sizeof *sums);
  for (int r = 0; r < R; ++r) {
    if (w.kind == kW8) {
      w8_row(w, block, x, row + r, sums[r]);
    } else {
      w4_row(w, block, x, row + r, sums[r]);
    }
  }
}

}  // namespace tessera
