// What a block of the wide GEMM is made of and works on: tile shape, shared memory, arguments, and its share of the tiles.
#pragma once
#include "common/sync.cuh"
#include "common/tiled.cuh"
#include "gemm/dequant.cuh"

namespace tessera::gemm {

// An output tile is kTokens tokens by kConsumers warpgroups of 64 rows. kBlocks: of an SM at once.
template <class Format_, class T_, int kTokens_, int kConsumers_, int kStages_, int kBlocks_>
struct Wide {
  using Format = Format_;
  using T = T_;  // of y and bias
  static constexpr int kTokens = kTokens_, kConsumers = kConsumers_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers), kTileRows = kRows * kConsumers;
  // What the block is launched with, 65536 / (threads of an SM) rounded down to 8, dealt anew.
  static constexpr int kProducerRegisters = kBlocks == 2 || kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kBlocks == 2 ? 96 : kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;

  static constexpr int kActivationBytes = kTokens * kStep, kWeightBytes = kConsumers * Format::kTileBytes;
  static constexpr int kEndBytes = kTokens * 8 + kTileRows * 16;  // of what one tile's epilogue needs, kept twice
  static constexpr int kOutputBytes = 1024;                       // a warp: 32 tokens x 16 rows of y
  static constexpr int kSmem =
      kStages * (kActivationBytes + kWeightBytes) + 2 * kEndBytes + 4 * kConsumers * kOutputBytes;
};

template <class C>
struct WideSmem {
  u32 base, full, empty, ends_full, ends_empty;  // barriers: kStages, kStages, 2, 2
  TESSERA_DEVICE u32 activations(int s) const { return base + s * C::kActivationBytes; }
  TESSERA_DEVICE u32 weights(int s) const { return base + C::kStages * C::kActivationBytes + s * C::kWeightBytes; }
  TESSERA_DEVICE u32 ends(int i) const {
    return base + C::kStages * (C::kActivationBytes + C::kWeightBytes) + i * C::kEndBytes;
  }
  TESSERA_DEVICE u32 end_rows(int i) const { return ends(i) + C::kTokens * 8; }
  TESSERA_DEVICE u32 output(int warp) const { return ends(2) + warp * C::kOutputBytes; }
};

struct WideArgs {
  const u8* weights;         // [ceil(n / 64)][steps][Format::kTileBytes]
  const u8* x;               // [steps][ceil(tokens / 8)][1024]
  const i32* offset;         // [64 ceil(n / 64)]
  const float* row_scale;    // [64 ceil(n / 64)]
  const void* bias;          // [n] of T, or null
  const i32* row_sum;        // [tokens]
  const float* token_scale;  // [tokens]
  void* y;                   // [tokens, n] of T
  i32* partial;              // [grid][2][kTileRows * kTokens]
  u32* arrived;              // [split_tiles][4 * kConsumers], zero between launches
  int tokens, n, steps;      // steps: ceil(k / 128)
  int split_tiles, quota;    // the first tiles are cut into runs of `quota` steps, at most `steps`, one a block
  int stagger;               // stages by which a warpgroup starts behind the one before it
};

// Steps [first, last) of an output tile. Token tiles are counted fastest, so that neighbours in time share weights.
struct Segment {
  int tile, first, last;
  template <class C>
  TESSERA_DEVICE int token(const WideArgs& p) const { return tile % div_up(p.tokens, C::kTokens) * C::kTokens; }
  template <class C>
  TESSERA_DEVICE int row(const WideArgs& p) const { return tile / div_up(p.tokens, C::kTokens) * C::kTileRows; }
};

// This block's segments in order: a run of the tiles that are cut, then every gridDim-th of the others.
template <class C>
class Share {
 public:
  TESSERA_DEVICE explicit Share(const WideArgs& p)
      : at_(min(static_cast<int>(blockIdx.x) * p.quota, p.split_tiles * p.steps)),
        end_(min(at_ + p.quota, p.split_tiles * p.steps)), tile_(p.split_tiles + blockIdx.x) {}

  TESSERA_DEVICE bool next(const WideArgs& p, Segment& s) {
    if (at_ < end_) {
      const int tile = at_ / p.steps, first = at_ - tile * p.steps;
      s = {tile, first, min(p.steps, first + end_ - at_)};
      at_ += s.last - s.first;
      return true;
    }
    s = {tile_, 0, p.steps};
    tile_ += gridDim.x;
    return s.tile < div_up(p.tokens, C::kTokens) * div_up(p.n, C::kTileRows);
  }

 private:
  int at_, end_, tile_;
};

// Position in a ring of kStages buffers, and the parity of the phase in which a buffer is filled.
template <int kStages>
struct Turn {
  int stage = 0;
  u32 parity = 0;
  TESSERA_DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

}  // namespace tessera::gemm
