// The ends of a tile: parts of sums that several blocks computed are put together, sums become numbers, numbers are stored.
// Warps work alone here: each owns 16 rows, and no barrier holds it to the others.
#pragma once
#include "common/matrix.cuh"
#include "gemm/wide_work.cuh"

namespace tessera::gemm {

TESSERA_DEVICE void store_word_pair(u32 address, u32 a, u32 b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" :: "r"(address), "r"(a), "r"(b) : "memory");
}

// (sum, scale) of a tile's tokens and (offset, scale, bias, 0) of its rows into shared memory, by `threads` threads.
template <class C>
TESSERA_DEVICE void stage_ends(const WideArgs& p, const WideSmem<C>& smem, int buffer, const Segment& s, int thread,
                               int threads) {
  for (int i = thread; i < C::kTokens; i += threads) {
    const int m = s.token<C>(p) + i;
    const bool inside = m < p.tokens;
    store_word_pair(smem.ends(buffer) + i * 8, inside ? p.row_sum[m] : 0,
                    __float_as_uint(inside ? p.token_scale[m] : 0.f));
  }
  for (int i = thread; i < C::kTileRows; i += threads) {
    const int r = s.row<C>(p) + i;
    uint4 row{};
    if (r < p.n) {
      row.x = p.offset[r], row.y = __float_as_uint(p.row_scale[r]);
      if (p.bias) row.z = __float_as_uint(to_float(static_cast<const typename C::T*>(p.bias)[r]));
    }
    store_shared(smem.end_rows(buffer) + i * 16, row);
  }
}

TESSERA_DEVICE uint4 load_written(const i32* p) {  // by another block, so past L1
  uint4 x;
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
  return x;
}

// Where this warp's part of a cut tile lies that `block` computed: its first or its second part.
template <class C>
TESSERA_DEVICE i32* part_of(const WideArgs& p, int block, int tile, int warp) {
  const bool second = block * p.quota / p.steps != tile;
  return p.partial + ((static_cast<i64>(block) * 2 + second) * (4 * C::kConsumers) + warp) * (16 * C::kTokens) +
         lane_id() * 4;
}

// Whether this warp is the last of those with parts of its 16 rows: `acc` then holds the whole sums. The others leave
// their part for it. Sums are integers, so the order of additions does not matter.
template <class C>
TESSERA_DEVICE bool combine(const WideArgs& p, const Segment& s, int warp, i32 (&acc)[C::kTokens / 2]) {
  if (s.last - s.first == p.steps) return true;
  const int block = blockIdx.x, from = s.tile * p.steps / p.quota, to = ((s.tile + 1) * p.steps - 1) / p.quota;
  const u32 others = to - from;
  u32* arrived = p.arrived + s.tile * (4 * C::kConsumers) + warp;
  u32 before = lane_id() == 0 ? load_acquire(arrived) : 0;
  if (__shfl_sync(0xffffffffu, before, 0) != others) {
    i32* part = part_of<C>(p, block, s.tile, warp);
#pragma unroll
    for (int i = 0; i < C::kTokens / 8; ++i) {
      *reinterpret_cast<int4*>(part + i * 128) = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
    }
    __syncwarp();
    if (lane_id() == 0) before = add_acquire_release(arrived);
    if (__shfl_sync(0xffffffffu, before, 0) != others) return false;
  }
  __syncwarp();
  if (lane_id() == 0) *arrived = 0;
  for (int b = from; b <= to; ++b) {
    if (b == block) continue;
    const i32* part = part_of<C>(p, b, s.tile, warp);
#pragma unroll
    for (int i = 0; i < C::kTokens / 8; ++i) {
      const uint4 x = load_written(part + i * 128);
      acc[4 * i] += x.x, acc[4 * i + 1] += x.y, acc[4 * i + 2] += x.z, acc[4 * i + 3] += x.w;
    }
  }
  return true;
}

// Eight neighbouring rows of one token.
template <class T>
TESSERA_DEVICE void store_rows(T* y, int row, int n, uint4 v) {
  if (n % 8 == 0) {
    if (row < n) *reinterpret_cast<uint4*>(y + row) = v;
    return;
  }
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (row + i < n) y[row + i].bits = static_cast<u16>(words[i / 2] >> 16 * (i % 2));
  }
}

// Sums of a warp's 16 rows to y, through 1 KB of shared memory in which tokens become rows of 32 bytes.
template <class C>
TESSERA_DEVICE void store_tile(const WideArgs& p, const WideSmem<C>& smem, int buffer, const Segment& s, int warp,
                               const i32 (&acc)[C::kTokens / 2]) {
  constexpr int kChunk = C::kTokens < 32 ? C::kTokens : 32;
  using T = typename C::T;
  const int lane = lane_id(), m = s.token<C>(p), row = s.row<C>(p) + warp * 16 + lane % 2 * 8;
  const u32 out = smem.output(warp), rows = smem.end_rows(buffer) + (warp * 16 + lane / 4) * 16;
  const uint4 row0 = load_shared(rows), row1 = load_shared(rows + 8 * 16);
  const i32 offset[2] = {static_cast<i32>(row0.x), static_cast<i32>(row1.x)};
  const float scale[2] = {__uint_as_float(row0.y), __uint_as_float(row1.y)};
  const float bias[2] = {__uint_as_float(row0.z), __uint_as_float(row1.z)};
  const u32 tokens = smem.ends(buffer) + lane % 4 * 16;
#pragma unroll
  for (int chunk = 0; chunk < C::kTokens / kChunk; ++chunk) {
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {  // 16 tokens: two 8 x 8 matrices for each half of the rows
      u32 f[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = chunk * (kChunk / 8) + pair * 2 + i / 2, h = i % 2;
        const uint4 t = load_shared(tokens + j * 64);  // (sum, scale) of two tokens
        const i32 first = acc[4 * j + 2 * h], second = acc[4 * j + 2 * h + 1];
        f[i] = pack2<T>(finish(first, offset[h], t.x, scale[h], __uint_as_float(t.y), bias[h]),
                        finish(second, offset[h], t.z, scale[h], __uint_as_float(t.w), bias[h]));
      }
      const int token = pair * 16 + lane / 16 * 8 + lane % 8;
      stmatrix_trans(out + token * 32 + (lane / 8 % 2 ^ token / 4 % 2) * 16, f);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunk / 16; ++i) {
      const int token = i * 16 + lane / 2, at = m + chunk * kChunk + token;
      const uint4 v = load_shared(out + token * 32 + (lane % 2 ^ token / 4 % 2) * 16);
      if (at < p.tokens) store_rows(static_cast<T*>(p.y) + static_cast<i64>(at) * p.n, row, p.n, v);
    }
    __syncwarp();
  }
}

}  // namespace tessera::gemm
