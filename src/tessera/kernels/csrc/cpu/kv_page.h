// How keys and values lie in a page's slice (64 tokens of one KV head), and how one token is appended.
//
//   slice = K | V | K scales f16[64] | K minima f16[64] | V scales f16[64] | V minima f16[64]   (the last
//   four for 4-bit caches only)
//
// K and V are made of planes, 16 numbers that one step of the attention loop uses at once. K is transposed:
// plane d * 4 + i holds dimension d of tokens 16 i .. 16 i + 15, so scores of 16 tokens accumulate side by
// side. V is not: plane t * (D / 16) + i holds dimensions 16 i .. of token t. Floats store planes one after
// the other; 4-bit codes put 8 planes into 16 words of 32 bits, plane p in nibble p % 8.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace tessera {

constexpr int kPage = 64;
constexpr int kPlane = 16;

template <class T>
struct FloatPage {
  static constexpr bool kQuantized = false;

  static int64_t body_bytes(int64_t head_dim) { return kPage * head_dim * sizeof(T); }

  static simd::F convert(const T* p) {
    if constexpr (sizeof(T) == 4) {
      return simd::load(p);
    } else {
      return simd::load_f16(p);
    }
  }
  // Planes first..first+N-1 of `body`, W of the 16 numbers of each, from `lane` on.
  template <int N>
  static void planes(const uint8_t* body, int64_t first, int lane, simd::F* out) {
    const T* p = reinterpret_cast<const T*>(body) + first * kPlane + lane;
    UNROLL for (int i = 0; i < N; ++i) out[i] = convert(p + i * kPlane);
  }

  static void put(T* to, const float* x) {
    if constexpr (sizeof(T) == 4) {
      *to = *x;
    } else {
      uint16_t lanes[simd::W];
      simd::store_f16(lanes, simd::set(*x));
      *to = lanes[0];
    }
  }
  static void append_key(uint8_t* slice, int64_t head_dim, int token, const float* k) {
    T* keys = reinterpret_cast<T*>(slice);
    for (int64_t d = 0; d < head_dim; ++d) put(keys + d * kPage + token, k + d);
  }
  static void append_value(uint8_t* slice, int64_t head_dim, int token, const float* v) {
    T* values = reinterpret_cast<T*>(slice + body_bytes(head_dim)) + token * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) put(values + d, v + d);
  }
};

struct Kv4Page {
  static constexpr bool kQuantized = true;

  static int64_t body_bytes(int64_t head_dim) { return kPage * head_dim / 2; }
  static const uint16_t* params(const uint8_t* slice, int64_t head_dim) {
    return reinterpret_cast<const uint16_t*>(slice + 2 * body_bytes(head_dim));
  }

  // N is 4 with `first` a multiple of 4 (one word's half), or 1.
  template <int N>
  static void planes(const uint8_t* body, int64_t first, int lane, simd::F* out) {
    static_assert(N == 4 || N == 1);
    using namespace simd;
    const I word = shift_right(load_int(body + first / 8 * 64 + lane * 4), first % 8 * 4);
    out[0] = nibble<0>(word);
    if constexpr (N == 4) {
      out[1] = nibble<1>(word);
      out[2] = nibble<2>(word);
      out[3] = nibble<3>(word);
    }
  }

  // Codes of one head and its (scale, minimum) as f16: bit for bit what numerics.quantize_kv does.
  static void quantize(const float* x, int64_t head_dim, uint8_t* codes, uint16_t* scale_out, uint16_t* min_out) {
    using namespace simd;
    F low = load(x), high = low;
    bool nan = false;
    for (int64_t d = 0; d < head_dim; d += W) {
      const F v = load(x + d);
      low = min(low, v);
      high = max(high, v);
      nan |= any_nan(v);
    }
    const float bottom = nan ? NAN : smallest(low);
    float scale = (largest(high) - bottom) / 15.0f;
    if (scale < 0x1p-24f) scale = 0x1p-24f;
    uint16_t halves[W];
    store_f16(halves, set(scale));
    *scale_out = halves[0];
    float wide[W];
    store(wide, load_f16(halves));
    const F inverse = set(1.0f / wide[0]);
    store_f16(halves, set(bottom));
    *min_out = halves[0];
    const F offset = load_f16(halves);
    for (int64_t d = 0; d < head_dim; d += W) {
      const F scaled = (load(x + d) - offset) * inverse;
      int32_t lanes[W];
      store_int(lanes, round_to_int(min(max(scaled, set(0.0f)), set(15.0f))));  // NaN to 0
      for (int i = 0; i < W; ++i) codes[d + i] = static_cast<uint8_t>(lanes[i]);
    }
  }

  static void append_key(uint8_t* slice, int64_t head_dim, int token, const float* k) {
    uint8_t codes[kMaxHeadDim];
    uint16_t* p = reinterpret_cast<uint16_t*>(slice + 2 * body_bytes(head_dim));
    quantize(k, head_dim, codes, p + token, p + kPage + token);
    const int shift = token / kPlane * 4;  // planes d * 4 + token / 16: nibbles of even and odd d
    const uint32_t keep = ~(0x000f000fu << shift);
    for (int64_t d = 0; d < head_dim; d += 2) {
      uint8_t* at = slice + d / 2 * 64 + token % kPlane * 4;
      uint32_t word;
      memcpy(&word, at, sizeof word);
      word = (word & keep) | (codes[d] | static_cast<uint32_t>(codes[d + 1]) << 16) << shift;
      memcpy(at, &word, sizeof word);
    }
  }
  static void append_value(uint8_t* slice, int64_t head_dim, int token, const float* v) {
    uint8_t codes[kMaxHeadDim];
    uint16_t* p = reinterpret_cast<uint16_t*>(slice + 2 * body_bytes(head_dim)) + 2 * kPage;
    quantize(v, head_dim, codes, p + token, p + kPage + token);
    uint8_t* values = slice + body_bytes(head_dim);
    for (int64_t i = 0; i < head_dim / kPlane; ++i) {
      const int64_t plane = token * (head_dim / kPlane) + i;
      const int shift = plane % 2 * 4;
      uint8_t* bytes = values + plane / 8 * 64 + plane % 8 / 2;
      for (int n = 0; n < kPlane; ++n) {
        bytes[n * 4] = (bytes[n * 4] & ~(15 << shift)) | codes[i * kPlane + n] << shift;
      }
    }
  }

  static constexpr int kMaxHeadDim = 256;
};

}  // namespace tessera
