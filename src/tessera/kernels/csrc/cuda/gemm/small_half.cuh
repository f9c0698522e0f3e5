// y = x W^T of 16-bit rows and 4-bit weights on the kernel for few tokens, with sums in fp32.
//
// Weights are operand A as whole numbers, (q - z) times a power of two: codes in bits 0-3 or 4-7 of a half word are
// numbers as they lie, subnormal ones, and one multiply-add takes them to a normal size and the zero point off. So two
// weights cost two instructions and a quarter, and none is rounded. Scales are applied to sums at the end of a group.
// Slices and parts are added in the order of K: the result depends on the number of tokens and the grid, not on timing.
#pragma once
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "gemm/half.cuh"
#include "gemm/small.cuh"

namespace tessera::gemm {

template <class T_>
struct HalfArgs {
  using T = T_;
  const u8* tiles;   // [div_up(n, 128)][steps][2][kTileBytes]
  const float* row;  // [2][round_up(n, 128)]: scales and zero points of rows without groups
  const T* x;        // [m, k], read through a tensor map on sm_90
  const T* bias;     // [n] or null
  T* y;              // [m, n]
  u32* parts;        // [2 blocks][kSums]
  u32* arrived;      // [blocks][kRowWarps] zeros
  int m, n, k, steps;
};

// Sums of a warp: total[strip][atom] as mma.cuh lays them out.
template <class C>
struct HalfSums {
  using T = typename C::Product::T;
  using W = typename C::Weights;
  static constexpr int kPairs = W::kPairs;  // k = 32 steps that share parameters
  using Part = float[C::kStrips][C::kAtoms][4];
  Part total;

  TESSERA_DEVICE float (&quad(int i))[4] { return total[i / C::kAtoms][i % C::kAtoms]; }

  template <class Args>
  TESSERA_DEVICE void begin(const Args& p, int row) {
    clear(total);
    if constexpr (!W::kGroup) {
      const float* zero = p.row + round_up(p.n, 2 * kRows);
#pragma unroll
      for (int i = 0; i < C::kStrips; ++i) {
        const int g = row + 16 * i, g8 = g + 8;
        whole_[i] = half::whole_row(g < p.n ? zero[g] : 0, g8 < p.n ? zero[g8] : 0);
      }
    }
  }
  TESSERA_DEVICE void end() {}

  TESSERA_DEVICE void add(const SmallRing<C>& ring, int stage, int slice, int row_warp) {
    const u32 row = ring.tokens(stage, slice) + lane_id() % kAtom * 128;
    u32 tiles[C::kStrips];
    uint4 w[C::kStrips][2];  // everything is loaded first, so that one latency covers it
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
      const int strip = row_warp * C::kStrips + i;
      tiles[i] = ring.weights(stage, strip / 4, slice);
#pragma unroll
      for (int h = 0; h < 2; ++h) w[i][h] = load_shared(tiles[i] + h * 2048 + (strip % 4 * kWarp + lane_id()) * 16);
    }
    Part part;
    half::RowPair rows[C::kStrips];
    u32 zeros[C::kStrips][2];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair % kPairs == 0) {
        clear(part);
#pragma unroll
        for (int i = 0; i < C::kStrips; ++i) {
          const int strip = (row_warp * C::kStrips + i) % 4;
          rows[i] = W::kGroup ? half::load_pair<W>(tiles[i], pair / kPairs, strip) : whole_[i];
          zeros[i][0] = half::minus_plain<T>(rows[i].zeros & 15);
          zeros[i][1] = half::minus_plain<T>(rows[i].zeros >> 4);
        }
      }
      u32 x[C::kAtoms][4];
#pragma unroll
      for (int j = 0; j < C::kAtoms; ++j) {
        const int chunk = pair % 2 * 4 + lane_id() / 8 ^ lane_id() % 8;
        ldmatrix(x[j], row + pair / 2 * (C::kTokenBytes / 2) + j * (kAtom * 128) + chunk * 16);
      }
      multiply<false>(part, w, zeros, pair, x);
      multiply<true>(part, w, zeros, pair, x);
      if ((pair + 1) % kPairs == 0) end_group(part, rows);
    }
  }

 private:
  TESSERA_DEVICE static void clear(Part& d) {
#pragma unroll
    for (auto& strip : d)
#pragma unroll
      for (auto& atom : strip)
#pragma unroll
        for (float& x : atom) x = 0;
  }

  // One k = 16 step of the two of `pair`.
  template <bool kHigh>
  TESSERA_DEVICE static void multiply(Part& part, const uint4 (&w)[C::kStrips][2], const u32 (&zeros)[C::kStrips][2],
                                      int pair, const u32 (&x)[C::kAtoms][4]) {
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
      const uint4& both = w[i][pair / 2];
      const u32 g = pair % 2 ? both.z : both.x, g8 = pair % 2 ? both.w : both.y;
      const u32 a[4] = {half::plain<T, kHigh>(g, zeros[i][0]), half::plain<T, kHigh>(g8, zeros[i][1]),
                        half::plain<T, kHigh>(g >> 8, zeros[i][0]), half::plain<T, kHigh>(g8 >> 8, zeros[i][1])};
#pragma unroll
      for (int j = 0; j < C::kAtoms; ++j) mma_16816<T>(part[i][j], a, {x[j][2 * kHigh], x[j][2 * kHigh + 1]});
    }
  }

  TESSERA_DEVICE void end_group(const Part& part, const half::RowPair (&rows)[C::kStrips]) {
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
      const float2 scales = W::kGroup ? unpack2<f16>(rows[i].scales) : make_float2(1, 1);
#pragma unroll
      for (int j = 0; j < C::kAtoms; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) total[i][j][e] += (e / 2 ? scales.y : scales.x) * part[i][j][e];
    }
  }

  half::RowPair whole_[C::kStrips];  // where rows have no groups
};

// Numbers out of sums: their unit, without groups each row's scale, the bias.
template <class C>
struct HalfEnds {
  float scale[C::kStrips][2], bias[C::kStrips][2];
  struct Pair {};

  template <class Args>
  TESSERA_DEVICE void load_rows(const Args& p, int row) {
#pragma unroll
    for (int i = 0; i < 2 * C::kStrips; ++i) {
      const int n = row + 8 * i;
      bias[i / 2][i % 2] = n < p.n && p.bias ? to_float(p.bias[n]) : 0;
      scale[i / 2][i % 2] = half::Plain<typename Args::T>::kUnit * (!C::Weights::kGroup && n < p.n ? p.row[n] : 1);
    }
  }
  template <class Args>
  TESSERA_DEVICE void load_tokens(const Args&, int) {}
  TESSERA_DEVICE Pair pair(int) const { return {}; }
  TESSERA_DEVICE float operator()(float sum, int strip, int half, Pair, int) const {
    return __fmaf_rn(sum, scale[strip][half], bias[strip][half]);
  }
};

// kGroup: columns of a group (32, 64 or 128), 0 where a row has one scale.
template <class T_, int kGroup>
struct HalfProduct {
  using T = T_;
  using Sum = float;
  struct Weights : half::Int4<kGroup> {
    static constexpr int kTileBytes = half::Int4<kGroup>::kBytes, kTogether = 2;
  };
  static constexpr int kTokenBytes = 2 * kStep;  // of a token's step
  static constexpr int kStageAlignment = 1024;   // of what tensor maps swizzle
  static constexpr int kSumsOfTwoBlocks = 32;    // strips times tokens of a warp where an SM has two
  template <class C>
  using Sums = HalfSums<C>;
  template <class C>
  using Ends = HalfEnds<C>;
  template <class C>
  TESSERA_DEVICE static int first_token(const HalfArgs<T>&, const Unit<C>& at) { return at.token_tile * C::kTokens; }
};

// A step of tokens is two panels of 64 columns, tokens in rows of 128 bytes under the 128-byte swizzle; zeros outside.
template <class C, class T>
struct FillHalf {
  const HalfArgs<T>& p;
  const TensorMap& map;
  SmallRing<C> ring;
  TESSERA_DEVICE void operator()(int s, Unit<C>& at, int count) const {
    const u32 full = ring.full(s);
    if constexpr (kBulkCopy) mbarrier_arrive_expect(full, count * C::kTokenBytes);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      copy(ring.tokens(s, i), at.step * kStep, at.token_tile * C::kTokens, full);
      if (++at.step == p.steps) at.next_tile(p);
    }
    if constexpr (!kBulkCopy) cp_async_arrive(full);
  }

 private:
  TESSERA_DEVICE void copy(u32 to, int column, int token, u32 full) const {
    if constexpr (kBulkCopy) {
      tensor_load(to, map, column, token, full);
      tensor_load(to + C::kTokenBytes / 2, map, column + kStep / 2, token, full);
    } else {
      for (int i = lane_id(); i < C::kTokens * 16; i += kWarp) {
        const int row = i / 16, chunk = i % 16;
        const bool inside = token + row < p.m && column + chunk * 8 < p.k;
        const i64 from = inside ? static_cast<i64>(token + row) * p.k + column + chunk * 8 : 0;
        cp_async(to + chunk / 8 * (C::kTokenBytes / 2) + row * 128 + (chunk % 8 ^ row % 8) * 16, p.x + from,
                 inside ? 16 : 0);
      }
    }
  }
};

// See small_run of small.cuh. `map`: x in boxes of kTokens by 64 columns.
template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    small_half(const __grid_constant__ TensorMap map, const u8* tiles, const float* row, const T* x, const T* bias,
               T* y, u32* parts, u32* arrived, int m, int n, int k, int steps) {
  extern __shared__ __align__(1024) u8 smem[];
  const HalfArgs<T> p{tiles, row, x, bias, y, parts, arrived, m, n, k, steps};
  const SmallRing<C> ring{smem_address(smem)};
  small_run(p, ring, FillHalf<C, T>{p, map, ring});
}

}  // namespace tessera::gemm
