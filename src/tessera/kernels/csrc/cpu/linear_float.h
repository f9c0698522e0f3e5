// y = x W^T + b with float32 activations and weights of any stored format, decoded to float32 in registers.
//
// One vector holds W outputs; x is broadcast and k runs in order, so every output is one chain of fused
// multiply-adds whose rounding does not depend on how many rows or outputs are computed beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "linear_int.h"
#include "pool.h"
#include "simd.h"

namespace tessera {

enum FloatKind : int64_t { kF32 = 0, kF16 = 1, kBf16 = 2, kS8 = 3, kU4Zero = 4, kU4Min = 5 };

struct FloatLinear {  // mirrored by `FloatLinearDescriptor` in kernels/cpu/linear_float.py
  int64_t kind;
  int64_t n, k, k_padded;       // k_padded: a multiple of 8 (4-bit), of 4 (8-bit), or k itself
  int64_t group, groups;        // k per group of 4-bit codes, the last one may be shorter; else k and 1
  const void* codes;            // [blocks][k][16] floats, or nibbles and bytes as in linear_int.h
  const uint16_t* group_scale;  // f16 [blocks][groups][16], 4-bit only
  const void* group_offset;     // u8 zero or f16 minimum [blocks][groups][16]
  const float* scale;           // [blocks * 16], kS8 only
  const float* bias;            // [blocks * 16] or null
};

// A column decodes weights of W outputs from `lane` of a block on; `start_group` loads a group's parameters,
// and `weight<J>(k)` is that of k + J for k a multiple of 8.

template <int64_t Kind>
struct PlainColumn {
  using T = std::conditional_t<Kind == kF32, float, uint16_t>;
  const T* data;

  void init(const FloatLinear& w, int64_t block, int lane) {
    data = static_cast<const T*>(w.codes) + block * w.k * kLanes + lane;
  }
  void start_group(const FloatLinear&, int64_t) {}
  template <int J>
  simd::F weight(int64_t k) const {
    const T* p = data + (k + J) * kLanes;
    if constexpr (Kind == kF32) return simd::load(p);
    if constexpr (Kind == kF16) return simd::load_f16(p);
    if constexpr (Kind == kBf16) return simd::load_bf16(p);
  }
};

struct S8Column {
  const uint8_t* data;

  void init(const FloatLinear& w, int64_t block, int lane) {
    data = static_cast<const uint8_t*>(w.codes) + block * w.k_padded * kLanes + lane * 4;
  }
  void start_group(const FloatLinear&, int64_t) {}
  template <int J>
  simd::F weight(int64_t k) const {
    using namespace simd;
    const I word = load_int(data + (k + J) / 4 * 64);
    return to_float(and_int(shift_right(word, J % 4 * 8), set_int(255))) - set(128);
  }
};

// (q - z) s and q s + m alike as one fused q a + b: exact for the first, since q, z and s are short.
template <int64_t Kind>
struct U4Column {
  const uint8_t* data;
  int64_t params;  // of group 0
  simd::F scale, offset;

  void init(const FloatLinear& w, int64_t block, int lane) {
    data = static_cast<const uint8_t*>(w.codes) + block * w.k_padded * 8 + lane * 4;
    params = block * w.groups * kLanes + lane;
  }
  void start_group(const FloatLinear& w, int64_t g) {
    using namespace simd;
    const int64_t at = params + g * kLanes;
    scale = load_f16(w.group_scale + at);
    if constexpr (Kind == kU4Zero) {
      offset = set(0) - to_float(load_uint8(static_cast<const uint8_t*>(w.group_offset) + at)) * scale;
    } else {
      offset = load_f16(static_cast<const uint16_t*>(w.group_offset) + at);
    }
  }
  template <int J>
  simd::F weight(int64_t k) const {  // nibble 2 i holds k + i, nibble 2 i + 1 holds k + 4 + i
    constexpr int kNibble = J < 4 ? 2 * J : 2 * (J - 4) + 1;
    return simd::fma(simd::nibble<kNibble>(simd::load_int(data + k * 8)), scale, offset);
  }
};

template <int R, int C, int J, class Column>
inline void float_step(const Column* columns, const float* x, int64_t stride, int64_t k, simd::F (*sum)[C]) {
  simd::F weights[C];
  UNROLL for (int c = 0; c < C; ++c) weights[c] = columns[c].template weight<J>(k);
  UNROLL for (int r = 0; r < R; ++r) {
    const simd::F value = simd::set(x[r * stride + k + J]);
    UNROLL for (int c = 0; c < C; ++c) sum[r][c] = simd::fma(weights[c], value, sum[r][c]);
  }
}

// k..k+7, or as many of them as lie before `stop`.
template <int R, int C, class Column, int... J>
inline void float_steps(const Column* columns, const float* x, int64_t stride, int64_t k, simd::F (*sum)[C],
                        std::integer_sequence<int, J...>) {
  (float_step<R, C, J>(columns, x, stride, k, sum), ...);
}
template <int R, int C, class Column, int... J>
inline void last_steps(const Column* columns, const float* x, int64_t stride, int64_t k, int64_t stop,
                       simd::F (*sum)[C], std::integer_sequence<int, J...>) {
  ((k + J < stop ? float_step<R, C, J>(columns, x, stride, k, sum) : void()), ...);
}

inline void finish_float(const FloatLinear& w, int64_t vector, simd::F sum, float* y) {
  using namespace simd;
  const int64_t first = vector * W;
  if (w.kind == kS8) sum = sum * load(w.scale + first);
  if (w.bias) sum = sum + load(w.bias + first);
  if (first + W <= w.n) return store(y + first, sum);
  float partial[W];
  store(partial, sum);
  memcpy(y + first, partial, sizeof(float) * (w.n - first));
}

// R rows of x against C vectors of outputs, the first being `vector`.
template <int R, int C, class Column>
void float_tile(const FloatLinear& w, int64_t vector, const float* x, float* y) {
  using namespace simd;
  constexpr int kVectors = kLanes / W;  // of a block
  Column columns[C];
  F sum[R][C];
  UNROLL for (int c = 0; c < C; ++c) {
    columns[c].init(w, (vector + c) / kVectors, (vector + c) % kVectors * W);
    UNROLL for (int r = 0; r < R; ++r) sum[r][c] = set(0);
  }
  for (int64_t g = 0; g < w.groups; ++g) {
    UNROLL for (int c = 0; c < C; ++c) columns[c].start_group(w, g);
    const int64_t stop = std::min((g + 1) * w.group, w.k);
    int64_t k = g * w.group;
    for (; k + 8 <= stop; k += 8) float_steps<R, C>(columns, x, w.k, k, sum, std::make_integer_sequence<int, 8>());
    if (k < stop) last_steps<R, C>(columns, x, w.k, k, stop, sum, std::make_integer_sequence<int, 7>());
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < C; ++c) finish_float(w, vector + c, sum[r][c], y + r * w.n);
  }
}

template <int C, class Column>
void float_rows(const FloatLinear& w, int64_t vector, const float* x, int64_t row, int64_t stop, float* y) {
  for (; row + 4 <= stop; row += 4) float_tile<4, C, Column>(w, vector, x + row * w.k, y + row * w.n);
  for (; row < stop; ++row) float_tile<1, C, Column>(w, vector, x + row * w.k, y + row * w.n);
}

template <class Column>
void run_float_kind(const FloatLinear& w, const float* x, int64_t count, float* y) {
  constexpr int kTogether = 4;
  constexpr int64_t kRowsPerChunk = 64;
  const int64_t vectors = (w.n + simd::W - 1) / simd::W;
  const int64_t pieces = (vectors + kTogether - 1) / kTogether;
  const int64_t slices = (count + kRowsPerChunk - 1) / kRowsPerChunk;
  parallel_for(pieces * slices, [&](int64_t chunk) {
    const int64_t first = chunk / slices * kTogether, row = chunk % slices * kRowsPerChunk;
    const int64_t stop = std::min(row + kRowsPerChunk, count);
    if (first + kTogether <= vectors) {
      float_rows<kTogether, Column>(w, first, x, row, stop, y);
    } else {
      for (int64_t v = first; v < vectors; ++v) float_rows<1, Column>(w, v, x, row, stop, y);
    }
  });
}

inline void run_float_linear(const FloatLinear& w, const float* x, int64_t count, float* y) {
  switch (w.kind) {
    case kF32: return run_float_kind<PlainColumn<kF32>>(w, x, count, y);
    case kF16: return run_float_kind<PlainColumn<kF16>>(w, x, count, y);
    case kBf16: return run_float_kind<PlainColumn<kBf16>>(w, x, count, y);
    case kS8: return run_float_kind<S8Column>(w, x, count, y);
    case kU4Zero: return run_float_kind<U4Column<kU4Zero>>(w, x, count, y);
    case kU4Min: return run_float_kind<U4Column<kU4Min>>(w, x, count, y);
  }
}

}  // namespace tessera
