// What a block of the wide product of int4 weights and 16-bit activations is made of and works on: tile shape, shared
// memory, arguments, its share of the tiles.
#pragma once
#include "common/ring.cuh"
#include "common/types.cuh"
#include "gemm/half.cuh"

namespace tessera::half {

// Two codes q in bits 0-3 (kHigh: 4-7) of the halves of a word as (q - z) / kUnit, exactly. fp16 has no room for scales
// times 512, so there it is not `plain` but bits under those of 1024 or 64, whose last places they then are.
template <class T>
struct Exact {
  static constexpr float kUnit = Plain<T>::kUnit;
  u32 minus_zero;
  TESSERA_DEVICE explicit Exact(u32 zero) : minus_zero(minus_plain<T>(zero)) {}
  template <bool kHigh>
  TESSERA_DEVICE u32 make(u32 word) const { return plain<T, kHigh>(word, minus_zero); }
};
template <>
struct Exact<f16> {
  static constexpr float kUnit = 1;
  u32 low, high;  // -1024 - z, -64 - z
  TESSERA_DEVICE explicit Exact(u32 zero)
      : low(zero * 0x00010001u + 0xE400E400u), high(zero * 0x00100010u + 0xD400D400u) {}
  template <bool kHigh>
  TESSERA_DEVICE u32 make(u32 word) const {
    if constexpr (kHigh) return add2<f16>(lop3<kAndOr>(word, 0x00F000F0u, 0x54005400u), high);
    else return add2<f16>(lop3<kAndOr>(word, 0x000F000Fu, 0x64006400u), low);
  }
};

// An output tile is kTokens tokens by kPanels warpgroups of 64 rows; an SM holds kBlocks blocks at once.
template <class T_, int kGroup, int kTokens_, int kPanels_, int kStages_, int kBlocks_>
struct Wide {
  using T = T_;
  using Format = Int4<kGroup>;
  static constexpr float kUnit = Exact<T>::kUnit;  // of products where rows have no groups
  static constexpr int kTokens = kTokens_, kPanels = kPanels_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kThreads = kWarpgroup * (kPanels + 1), kTileRows = 64 * kPanels;
  // What the block is launched with, 65536 / (threads of an SM) rounded down to 8, dealt anew.
  static constexpr int kProducerRegisters = kBlocks == 1 && kPanels == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kBlocks == 2 ? 104 : kPanels == 2 ? 232 : kPanels == 3 ? 160 : 112;

  static constexpr int kProducers = kStages < 3 ? kStages : 3;  // warps that copy
  // Stages whose weights are asked for before the kernel ahead has ended. Copies are served in order, so where this
  // block has started only just before, more would hold up the activations.
  static constexpr int kAhead = kBlocks == 2 || kStages < 3 ? kStages : 3;
  // Cut tiles are put together in slices of their tokens, so that those who have parts share that work too.
  static constexpr int kSliceTokens = kTokens >= 192 ? 64 : kTokens >= 96 ? 32 : 16, kSlices = kTokens / kSliceTokens;

  static constexpr int kTokenBytes = kTokens * kColumns * 2, kWeightBytes = kPanels * Format::kBytes;
  // Of y that a warpgroup turns around at a time: more where that leaves the ring as it is.
  static constexpr int kChunkTokens = kSliceTokens == 32 && kPanels < 4 ? 32 : 16;
  static constexpr int kOutputBytes = 2 * kChunkTokens * 128;  // a warpgroup's: chunks of 64 rows, twice
  static constexpr int kSmem = kStages * (kTokenBytes + kWeightBytes) + kPanels * kOutputBytes +
                               kStages * 16 + kPanels * 4;  // barriers, votes
};

template <class C>
struct WideSmem {
  u32 base;
  TESSERA_DEVICE u32 x(int stage) const { return base + stage * C::kTokenBytes; }
  TESSERA_DEVICE u32 output(int panel) const { return x(C::kStages) + panel * C::kOutputBytes; }
  TESSERA_DEVICE u32 weights(int stage) const { return output(C::kPanels) + stage * C::kWeightBytes; }
  // Barriers: a stage has been filled, or may be.
  TESSERA_DEVICE u32 full(int stage) const { return weights(C::kStages) + stage * 8; }
  TESSERA_DEVICE u32 empty(int stage) const { return full(C::kStages + stage); }
  TESSERA_DEVICE u32 votes(int panel) const { return full(2 * C::kStages) + panel * 4; }
};

struct WideArgs {
  const u8* weights;    // [ceil(n / 128)][steps][2][Format::kBytes]
  const float* row;     // [2][128 ceil(n / 128)]: scales and zero points of rows without groups
  const void* bias;     // [n] of T, or null
  void* y;              // [tokens, n] of T
  float* parts;         // [cut_tiles * cuts][kPanels][kTokens * 64]
  u32* arrived;         // [cut_tiles][kPanels][kSlices], zero between launches
  int tokens, n;
  int steps;            // ceil(k / 128)
  int cut_tiles, cuts;  // each of the first tiles is shared by `cuts` blocks, at most `steps`, along k
};

// Steps [first, last) of an output tile. Token tiles are counted fastest, so that neighbours in time share weights.
struct WideSegment {
  int tile, first, last;
  template <class C>
  TESSERA_DEVICE int token(const WideArgs& p) const { return tile % div_up(p.tokens, C::kTokens) * C::kTokens; }
  template <class C>
  TESSERA_DEVICE int row(const WideArgs& p) const { return tile / div_up(p.tokens, C::kTokens) * C::kTileRows; }
};

// This block's segments in order: its run of steps of a tile that is cut, then every gridDim-th of the others.
template <class C>
class WideShare {
 public:
  TESSERA_DEVICE explicit WideShare(const WideArgs& p)
      : cut_(static_cast<int>(blockIdx.x) < p.cut_tiles * p.cuts), tile_(p.cut_tiles + blockIdx.x) {}

  TESSERA_DEVICE bool next(const WideArgs& p, WideSegment& s) {
    if (cut_) {
      const int run = div_up(p.steps, p.cuts), first = blockIdx.x % p.cuts * run;
      s = {static_cast<int>(blockIdx.x) / p.cuts, first, min(p.steps, first + run)};
      cut_ = false;
      return true;
    }
    s = {tile_, 0, p.steps};
    tile_ += gridDim.x;
    return s.tile < div_up(p.tokens, C::kTokens) * div_up(p.n, C::kTileRows);
  }

 private:
  bool cut_;
  int tile_;
};

}  // namespace tessera::half
