// Many rows of x with AVX-512 VNNI: 4-bit weights of four blocks are decoded once into unsigned bytes, in the
// layout 8-bit weights have anyway, and then meet all rows in tiles of 6 rows by 64 outputs.
#pragma once

#include "int_block_vnni.h"

namespace tessera {

constexpr int kPanelBlocks = 4;

// One block's 8-bit codes [k_padded / 4][64] of (q - z) s + 128, or of q where zeros come off at the end.
// 4 bytes times s fit no byte each, but (q s + 128 - z s) does, so one 32-bit multiply and add serve all four:
// carries between bytes cancel modulo 2^32 (the packer has checked that every byte lands in 0..255).
inline void decode_block(const IntLinear& w, int64_t block, uint8_t* out) {
  const uint8_t* codes = w.codes + block * w.block_bytes();
  const __m512i mask = _mm512_set1_epi8(15), ones = _mm512_set1_epi32(0x01010101);
  for (int64_t g = 0; g < w.groups; ++g) {
    __m512i scale = _mm512_set1_epi32(1), offset = _mm512_setzero_si512();
    if (w.kind == kW4Group) {
      scale = widen16(w.group_scale + (block * w.groups + g) * kLanes);
      const __m512i zero = widen16(w.group_zero + (block * w.groups + g) * kLanes);
      offset = _mm512_sub_epi32(_mm512_set1_epi32(128), _mm512_mullo_epi32(zero, scale));
      offset = _mm512_mullo_epi32(offset, ones);
    }
    const int64_t stop = std::min((g + 1) * w.group, w.k_padded) / 8;
    for (int64_t c = g * w.group / 8; c < stop; ++c) {
      const __m512i v = _mm512_loadu_si512(codes + c * 64);
      const __m512i low = _mm512_and_si512(v, mask), high = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
      const __m512i a = _mm512_add_epi32(_mm512_mullo_epi32(low, scale), offset);
      const __m512i b = _mm512_add_epi32(_mm512_mullo_epi32(high, scale), offset);
      _mm512_store_si512(out + c * 128, a);
      _mm512_store_si512(out + c * 128 + 64, b);
    }
  }
}

// Sums of R rows and B blocks of bytes, `block_stride` apart. Kept out of line: merged with what follows, the
// sums would be kept in memory.
template <int R, int B>
__attribute__((noinline)) void byte_tile(const uint8_t* bytes, int64_t block_stride, const int8_t* x, int64_t stride,
                                         int64_t quads, int32_t (*sums)[kLanes]) {
  __m512i sum[R][B];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int b = 0; b < B; ++b) sum[r][b] = _mm512_setzero_si512();
  }
  for (int64_t q = 0; q < quads; ++q) {
    __m512i weights[B];
    UNROLL for (int b = 0; b < B; ++b) weights[b] = _mm512_loadu_si512(bytes + b * block_stride + q * 64);
    UNROLL for (int r = 0; r < R; ++r) {
      const __m512i value = broadcast4(x + r * stride + q * 4);
      UNROLL for (int b = 0; b < B; ++b) sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], weights[b], value);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int b = 0; b < B; ++b) _mm512_storeu_si512(sums[r * B + b], sum[r][b]);
  }
}

struct Panel {
  const IntLinear& w;
  const Rows& x;
  int64_t block;  // the first
  const uint8_t* bytes;
  float* y;

  template <int R, int B>
  void tile(int64_t row) const {
    alignas(64) int32_t sums[R * B][kLanes];
    byte_tile<R, B>(bytes, w.k_padded * kLanes, x.codes + row * x.stride, x.stride, w.k_padded / 4, sums);
    UNROLL for (int b = 0; b < B; ++b) {
      __m512i offset = _mm512_set1_epi32(128);
      if (w.kind == kW4Channel) offset = widen16(w.group_zero + (block + b) * kLanes);
      UNROLL for (int r = 0; r < R; ++r) {
        const __m512i off = _mm512_mullo_epi32(offset, _mm512_set1_epi32(x.row_sum[row + r]));
        int32_t* sum = sums[r * B + b];
        _mm512_store_si512(sum, _mm512_sub_epi32(_mm512_load_si512(sum), off));
        finish_int(w, block + b, x, row + r, sum, y);
      }
    }
  }

  template <int B>
  void rows(int64_t row, int64_t stop) const {
    for (; row + 6 <= stop; row += 6) tile<6, B>(row);
    for (; row + 2 <= stop; row += 2) tile<2, B>(row);
    if (row < stop) tile<1, B>(row);
  }
};

// Rows first..stop-1 against blocks block..block+count-1 (count at most kPanelBlocks).
inline void int_panel(const IntLinear& w, int64_t block, int64_t count, const Rows& x, int64_t first, int64_t stop,
                      float* y) {
  const uint8_t* bytes = w.codes + block * w.block_bytes();
  if (w.kind != kW8) {
    uint8_t* decoded = scratch<2, uint8_t>(kPanelBlocks * w.k_padded * kLanes);
    for (int64_t b = 0; b < count; ++b) decode_block(w, block + b, decoded + b * w.k_padded * kLanes);
    bytes = decoded;
  }
  if (count == kPanelBlocks) {
    Panel{w, x, block, bytes, y}.rows<kPanelBlocks>(first, stop);
    return;
  }
  for (int64_t b = 0; b < count; ++b) {
    Panel{w, x, block + b, bytes + b * w.k_padded * kLanes, y}.rows<1>(first, stop);
  }
}

}  // namespace tessera
