// One step of K of int8 rows on one warp: its strips of 16 rows times all tokens of the tile.
#pragma once
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "gemm/small_fill.cuh"

namespace tessera::gemm {

// A strip of 4-bit weights: everything is loaded first, so that one latency covers it.
template <class W>
struct Strip {
  static constexpr int kGroups = W::kGroups > 0 ? W::kGroups : 1;
  uint4 half[2];
  u32 parameters[kGroups];

  TESSERA_DEVICE void load(u32 tile, int strip) {
    const int thread = strip * kWarp + lane_id();
    half[0] = load_shared(tile + thread * 16);
    half[1] = load_shared(tile + 2048 + thread * 16);
#pragma unroll
    for (int i = 0; i < W::kGroups; ++i)
      parameters[i] = load_shared_word(tile + kCodeBytes + i * kParameterBytes + thread / 4 * 4);
  }
  // Operand A of steps 2 h and 2 h + 1 of k = 32.
  TESSERA_DEVICE void operands(u32 (&a)[2][4], int h) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 w = half[h];
      RowPair pair{};
      if constexpr (W::kGroup > 0) pair = row_pair(parameters[(2 * h + j) * 32 / W::kGroup]);
      unpack<(W::kGroup > 0)>(a[j], j ? w.z : w.x, j ? w.w : w.y, pair);
    }
  }
};

// 8-bit weights are operands as they lie.
template <>
struct Strip<Int8> {
  u32 rows;

  TESSERA_DEVICE void load(u32 tile, int strip) { rows = tile + (strip * 16 + lane_id() % 16) * kStep; }
  TESSERA_DEVICE void operands(u32 (&a)[2][4], int h) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) ldmatrix(a[j], rows + ((2 * (2 * h + j) + lane_id() / 16) ^ lane_id() % 8) * 16);
  }
};

template <class W>
struct OperandType { using type = u8; };
template <>
struct OperandType<Int8> { using type = i8; };

// Sums of a warp: d[strip][atom][chain] as mma.cuh lays them out. A warp with few accumulators keeps two of each, for a
// multiplication waits for the one before it on the same accumulator.
template <class C>
struct Int8Sums {
  using W = typename C::Weights;
  static constexpr int kChains = C::kStrips * C::kAtoms <= 2 ? 2 : 1;
  i32 d[C::kStrips][C::kAtoms][kChains][4];

  TESSERA_DEVICE i32 (&quad(int i))[4] { return d[i / C::kAtoms][i % C::kAtoms][0]; }

  template <class Args>
  TESSERA_DEVICE void begin(const Args&, int) {
#pragma unroll
    for (auto& strip : d)
#pragma unroll
      for (auto& atom : strip)
#pragma unroll
        for (auto& chain : atom)
#pragma unroll
          for (i32& x : chain) x = 0;
  }

  TESSERA_DEVICE void end() {
    if constexpr (kChains == 2) {
#pragma unroll
      for (auto& strip : d)
#pragma unroll
        for (auto& atom : strip)
#pragma unroll
          for (int e = 0; e < 4; ++e) atom[0][e] += atom[1][e];
    }
  }

  TESSERA_DEVICE void add(const SmallRing<C>& ring, int stage, int slice, int row_warp) {
    using A = typename OperandType<W>::type;
    const int row = lane_id() % 8, chunk = lane_id() / 8;
    const u32 tokens = ring.tokens(stage, slice);
    Strip<W> strips[C::kStrips];
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
      const int strip = row_warp * C::kStrips + i;
      strips[i].load(ring.weights(stage, strip / 4, slice), strip % 4);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      u32 a[C::kStrips][2][4], x[C::kAtoms][4];
#pragma unroll
      for (int j = 0; j < C::kAtoms; ++j)
        ldmatrix(x[j], tokens + (j * kAtom + row) * kStep + ((4 * h + chunk) ^ row) * 16);
#pragma unroll
      for (int i = 0; i < C::kStrips; ++i) strips[i].operands(a[i], h);
      // The two multiplications of an accumulator as far apart as can be.
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < C::kAtoms; ++j)
#pragma unroll
          for (int i = 0; i < C::kStrips; ++i) {
            const u32 b[2] = {x[j][2 * half], x[j][2 * half + 1]};
            mma_16832<A>(d[i][j][half % kChains], a[i][half], b);
          }
    }
  }
};

}  // namespace tessera::gemm
