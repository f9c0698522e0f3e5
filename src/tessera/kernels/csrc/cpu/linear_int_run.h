// How an integer linear layer is cut into chunks: by blocks of outputs, and by rows where there are many.
#pragma once

#if defined(TESSERA_AVX512VNNI)
#include "panel_vnni.h"
#elif defined(TESSERA_AVX2) || defined(TESSERA_AVX512)
#include "int_block_maddubs.h"
#else
#include "int_block_portable.h"
#endif

namespace tessera {

constexpr int64_t kRowsPerChunk = 96;

// Every row against one block, codes decoded on the fly for as many rows at a time as registers allow.
inline void direct_rows(const IntLinear& w, int64_t block, const Rows& x, int64_t row, int64_t stop, float* y) {
  if constexpr (simd::W == 16) {
    for (; row + 8 <= stop; row += 8) int_tile<8>(w, block, x, row, y);
  }
  for (; row + 4 <= stop; row += 4) int_tile<4>(w, block, x, row, y);
  for (; row + 2 <= stop; row += 2) int_tile<2>(w, block, x, row, y);
  if (row < stop) int_tile<1>(w, block, x, row, y);
}

#if defined(TESSERA_AVX512VNNI)
constexpr int64_t kPanelRows = 12;  // from here on decoding a panel pays
inline void run_panels(const IntLinear& w, const Rows& x, float* y) {
  const int64_t panels = (w.blocks() + kPanelBlocks - 1) / kPanelBlocks;
  const int64_t slices = (x.count + kRowsPerChunk - 1) / kRowsPerChunk;
  parallel_for(panels * slices, [&](int64_t chunk) {
    // Slice by slice, so that the rows of y being written stay within reach of the TLB.
    const int64_t block = chunk % panels * kPanelBlocks, first = chunk / panels * kRowsPerChunk;
    const int64_t count = std::min<int64_t>(kPanelBlocks, w.blocks() - block);
    int_panel(w, block, count, x, first, std::min(first + kRowsPerChunk, x.count), y);
  });
}
#endif

inline void run_direct(const IntLinear& w, const Rows& x, float* y) {
  const int64_t per_chunk = std::max<int64_t>(1, 16384 / w.block_bytes());  // codes worth a chunk
  const int64_t pieces = (w.blocks() + per_chunk - 1) / per_chunk;
  const int64_t slices = (x.count + kRowsPerChunk - 1) / kRowsPerChunk;
  parallel_for(pieces * slices, [&](int64_t chunk) {
    const int64_t block = chunk / slices * per_chunk, first = chunk % slices * kRowsPerChunk;
    for (int64_t b = block; b < std::min(block + per_chunk, w.blocks()); ++b) {
      direct_rows(w, b, x, first, std::min(first + kRowsPerChunk, x.count), y);
    }
  });
}

inline void run_int_linear(const IntLinear& w, const int8_t* codes, const float* scale, const int32_t* row_sum,
                           int64_t count, float* y) {
  Rows x{codes, w.k, count, scale, row_sum, nullptr};
  if (w.k != w.k_padded) {
    x.codes = pad_rows(w, codes, count);
    x.stride = w.k_padded;
  }
#if defined(TESSERA_AVX512VNNI)
  if (count >= kPanelRows) return run_panels(w, x, y);
#endif
  if (w.kind == kW4Group) x.group_sum = group_sums(w, x.codes, x.stride, count);
  run_direct(w, x, y);
}

}  // namespace tessera
