// Rotary embedding (Su et al. 2021, half-split pairs i and i + D/2) of q and k, and k and v into their pages.
#pragma once
#include "attention/page16.cuh"
#include "elementwise/rows.cuh"

namespace tessera {

TESSERA_DEVICE Floats8 load_floats8(const float* p) {
  const uint4 a = load_nc(p), b = load_nc(p + 4);
  return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w),
           __uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)}};
}

// qkv [tokens, (heads + 2 kv_heads) D], cos and sin [positions, D/2], positions [tokens], slots [tokens] (-1: store
// nothing) -> q [tokens, heads D] and the cache. A thread moves one vector of each half of a head.
template <class Page>
__global__ void __launch_bounds__(256)
    rope_append(const typename Page::Element* qkv, const float* cos, const float* sin, const i32* positions,
                const i64* slots, typename Page::Element* q, char* cache, int tokens, int heads, int kv_heads) {
  using T = typename Page::Element;
  constexpr int kUnits = Page::kDim / 16;  // units a head
  await_predecessor();
  const int units = (heads + 2 * kv_heads) * kUnits;
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int token = index / units;
  if (token >= tokens) return;
  const int head = (index - token * units) / kUnits;
  const int unit = index % kUnits;
  const T* from = qkv + (static_cast<i64>(token) * (heads + 2 * kv_heads) + head) * Page::kDim + unit * 8;
  uint4 low = load_stream(from), high = load_stream(from + Page::kDim / 2);
  const bool is_v = head >= heads + kv_heads;
  if (!is_v) {
    const i64 at = static_cast<i64>(positions[token]) * (Page::kDim / 2) + unit * 8;
    const Floats8 c = load_floats8(cos + at), s = load_floats8(sin + at);
    const Floats8 a = unpack8<T>(low), b = unpack8<T>(high);
    Floats8 x, y;
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      x[i] = a[i] * c[i] - b[i] * s[i];
      y[i] = b[i] * c[i] + a[i] * s[i];
    }
    low = pack8<T>(x);
    high = pack8<T>(y);
  }
  if (head < heads) {
    T* to = q + (static_cast<i64>(token) * heads + head) * Page::kDim + unit * 8;
    *reinterpret_cast<uint4*>(to) = low;
    *reinterpret_cast<uint4*>(to + Page::kDim / 2) = high;
    return;
  }
  const i64 slot = slots[token];
  if (slot < 0) return;
  const int row = static_cast<int>(slot % Page::kTokens);
  const int kv_head = head - heads - (is_v ? kv_heads : 0);
  char* part = cache + Page::slice_offset(slot / Page::kTokens, kv_head, kv_heads) + (is_v ? Page::kPartBytes : 0);
  *reinterpret_cast<uint4*>(part + Page::chunk_offset(row, unit)) = low;
  *reinterpret_cast<uint4*>(part + Page::chunk_offset(row, unit + kUnits)) = high;
}

}  // namespace tessera
