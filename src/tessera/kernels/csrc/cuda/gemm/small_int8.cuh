// y = x W^T of int8 rows and 4- or 8-bit weights on the kernel for few tokens. Sums are int32, so that neither slices,
// pieces nor arrivals change a bit of the result.
#pragma once
#include "gemm/small.cuh"
#include "gemm/small_tile.cuh"

namespace tessera::gemm {

template <class T_>
struct Int8Args {
  using T = T_;
  const u8* tiles;           // [div_up(n, 64)][steps][kTileBytes], less than 2^31 tiles
  const float* row_scale;    // [64 panels]
  const i32* offset;         // [64 panels]
  const T* bias;             // [n] or null
  const u8* codes;           // [steps][div_up(m, 8)][8][128]
  const float* token_scale;  // [m]
  const i32* token_sum;      // [m]
  T* y;                      // [m, n]
  u32* parts;                // [2 blocks][kSums]
  u32* arrived;              // [blocks][kRowWarps] zeros
  int m, n, steps;
};

// What the epilogue needs of a thread's rows (g and g + 8 of each strip), loaded before the sums are complete.
template <class C>
struct RowScales {
  float scale[C::kStrips][2], bias[C::kStrips][2];
  i32 offset[C::kStrips][2];

  template <class Args>
  TESSERA_DEVICE void load(const Args& p, int row) {
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = row + 16 * i + 8 * half;
        const bool real = n < p.n;
        scale[i][half] = real ? p.row_scale[n] : 0;
        offset[i][half] = real ? p.offset[n] : 0;
        bias[i][half] = real && p.bias ? to_float(p.bias[n]) : 0;
      }
    }
  }
};

// The same of the tile's tokens: lane l holds tokens l and l + 32, and all lanes fetch what two of theirs need.
struct TokenPair {
  float scale[2];
  i32 sum[2];
};

template <class C>
struct TokenScales {
  static constexpr int kWords = div_up(C::kTokens, kWarp);
  float scale[kWords];
  i32 sum[kWords];

  template <class Args>
  TESSERA_DEVICE void load(const Args& p, int first) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int m = first + i * kWarp + lane_id();
      scale[i] = m < p.m ? p.token_scale[m] : 0;
      sum[i] = m < p.m ? p.token_sum[m] : 0;
    }
  }
  // Tokens 2 t and 2 t + 1 of atom `j`.
  TESSERA_DEVICE TokenPair pair(int j) const {
    TokenPair x;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int lane = j % 4 * kAtom + 2 * (lane_id() % 4) + e;
      x.scale[e] = __shfl_sync(0xffffffffu, scale[j / 4], lane);
      x.sum[e] = __shfl_sync(0xffffffffu, sum[j / 4], lane);
    }
    return x;
  }
};

// W: Int4<group> or Int8.
template <class W>
struct Int8Product {
  using Weights = W;
  using Sum = i32;
  static constexpr int kTokenBytes = kStep;  // of a token's step
  static constexpr int kStageAlignment = 128;
  static constexpr int kSumsOfTwoBlocks = 32;  // strips times tokens of a warp where an SM has two
  template <class C>
  using Sums = Int8Sums<C>;

  // The last tile begins early enough to be full, where there are so many tokens.
  template <class C, class T>
  TESSERA_DEVICE static int first_token(const Int8Args<T>& p, const Unit<C>& at) {
    return min(at.token_tile * C::kAtoms, max(div_up(p.m, kAtom) - C::kAtoms, 0)) * kAtom;
  }

  template <class C>
  struct Ends {
    RowScales<C> rows;
    TokenScales<C> tokens;
    template <class T>
    TESSERA_DEVICE void load_rows(const Int8Args<T>& p, int row) { rows.load(p, row); }
    template <class T>
    TESSERA_DEVICE void load_tokens(const Int8Args<T>& p, int token) { tokens.load(p, token); }
    TESSERA_DEVICE TokenPair pair(int atom) const { return tokens.pair(atom); }
    TESSERA_DEVICE float operator()(i32 sum, int strip, int half, const TokenPair& x, int t) const {
      return finish(sum, rows.offset[strip][half], x.sum[t], rows.scale[strip][half], x.scale[t],
                    rows.bias[strip][half]);
    }
  };
};

// Whole atoms: nobody looks at what rows that are no tokens lead to.
template <class C, class T>
struct FillRows {
  const Int8Args<T>& p;
  SmallRing<C> ring;
  TESSERA_DEVICE void operator()(int s, Unit<C>& at, int count) const {
    constexpr int kAtomBytes = kAtom * kStep;
    const int atoms = div_up(p.m, kAtom), bytes = min(atoms, C::kAtoms) * kAtomBytes;
    const u32 full = ring.full(s);
    if constexpr (kBulkCopy) mbarrier_arrive_expect(full, count * bytes);
#pragma unroll 1
    for (int i = 0; i < count;) {
      const int run = atoms == C::kAtoms ? min(count - i, p.steps - at.step) : 1;
      const int atom = C::Product::template first_token<C>(p, at) / kAtom;
      const u8* from = p.codes + static_cast<i64>(at.step * atoms + atom) * kAtomBytes;
      ring_copy<false>(ring.tokens(s, i), from, run * bytes, full);
      i += run, at.step += run;
      if (at.step == p.steps) at.next_tile(p);
    }
    if constexpr (!kBulkCopy) cp_async_arrive(full);
  }
};

// See small_run of small.cuh.
template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    small_int8(const u8* tiles, const float* row_scale, const i32* offset, const T* bias, const u8* codes,
               const float* token_scale, const i32* token_sum, T* y, u32* parts, u32* arrived,
               int m, int n, int steps) {
  extern __shared__ __align__(1024) u8 smem[];
  const Int8Args<T> p{tiles, row_scale, offset, bias, codes, token_scale, token_sum, y, parts, arrived, m, n, steps};
  const SmallRing<C> ring{smem_address(smem)};
  small_run(p, ring, FillRows<C, T>{p, ring});
}

}  // namespace tessera::gemm
