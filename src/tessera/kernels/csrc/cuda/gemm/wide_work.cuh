// What a block of the wide GEMM is made of and works on: tile shape, shared memory, arguments, its share of the tiles.
#pragma once
#include "common/bulk.cuh"
#include "common/sync.cuh"
#include "common/tiled.cuh"
#include "gemm/dequant.cuh"

namespace tessera::gemm {

// An output tile is kTokens tokens by kPanels times 64 rows. kTeams warpgroups share the steps of each panel and put
// their sums together at the end: small tiles then have as many warpgroups to hide latency as large ones. An SM holds
// kBlocks blocks at once.
template <class Format_, class T_, int kTokens_, int kPanels_, int kTeams_, int kStages_, int kBlocks_>
struct Wide {
  using Format = Format_;
  using T = T_;  // of y and bias
  static constexpr int kTokens = kTokens_, kPanels = kPanels_, kTeams = kTeams_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kConsumers = kPanels * kTeams;
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers), kTileRows = kRows * kPanels;
  // What the block is launched with, 65536 / (threads of an SM) rounded down to 8, dealt anew.
  static constexpr int kProducerRegisters = kBlocks == 2 || kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kBlocks == 2 ? 96 : kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;

  static constexpr int kProducers = 3;  // warps that copy
  static_assert(kStages >= kProducers, "each has a stage");
  static_assert(kStages % kTeams == 0, "a stage is always the same team's: it could not tell every second round apart");
  static constexpr int kBatch = 2;      // products of a group
  // Stages whose weights are asked for before the kernel ahead has ended. Copies are served in order, so where this
  // block has started only just before, more would hold up the activations.
  static constexpr int kAhead = kBlocks == 2 || kStages < 3 ? kStages : 3;
  // Parts of sums are put together in slices of a tile's tokens, so that those who have parts share that work too.
  static constexpr int kSliceTokens = kTokens >= 192 ? 64 : kTokens >= 96 ? 32 : 16, kSlices = kTokens / kSliceTokens;
  static_assert(kTeams == 1 || (kTeams == 2 && kSlices % 2 == 0), "teams take equal numbers of slices");

  static constexpr int kActivationBytes = kTokens * kStep, kWeightBytes = kPanels * Format::kTileBytes;
  static constexpr int kEndBytes = kTokens * 8 + kTileRows * 16;  // of what one tile's epilogue needs, kept twice
  // A warpgroup's y: a slice at once, in buffers of which all but one may be on their way to memory. In their place, a
  // slice of sums for the other team.
  static constexpr int kStoreBuffers = kTokens >= 128 && kTeams == 1 ? 3 : 2, kStoreBytes = kSliceTokens * kRows * 2;
  static constexpr int kOutputBytes = kStoreBuffers * kStoreBytes;
  static_assert(kTeams == 1 || kOutputBytes >= kSliceTokens * kRows * 4);
  static constexpr int kSmem = kStages * (kActivationBytes + kWeightBytes) + 2 * kEndBytes + kConsumers * kOutputBytes +
                               (2 * kStages + 4) * 8 + kConsumers * 4;  // barriers, votes
};

template <class C>
struct WideSmem {
  u32 base;
  TESSERA_DEVICE u32 output(int consumer) const { return base + consumer * C::kOutputBytes; }
  TESSERA_DEVICE u32 activations(int s) const { return output(C::kConsumers) + s * C::kActivationBytes; }
  TESSERA_DEVICE u32 weights(int s) const { return activations(C::kStages) + s * C::kWeightBytes; }
  TESSERA_DEVICE u32 ends(int i) const { return weights(C::kStages) + i * C::kEndBytes; }
  TESSERA_DEVICE u32 end_rows(int i) const { return ends(i) + C::kTokens * 8; }
  // Barriers: a stage or an epilogue's buffer has been filled, or may be.
  TESSERA_DEVICE u32 full(int s) const { return ends(2) + s * 8; }
  TESSERA_DEVICE u32 empty(int s) const { return full(C::kStages + s); }
  TESSERA_DEVICE u32 ends_full(int i) const { return full(2 * C::kStages + i); }
  TESSERA_DEVICE u32 ends_empty(int i) const { return ends_full(2 + i); }
  TESSERA_DEVICE u32 votes(int consumer) const { return ends_full(4) + consumer * 4; }
};

struct WideArgs {
  const TensorMap* map;      // of y in boxes of kSliceTokens x 64; of nothing where n is not a multiple of 8
  const u8* weights;         // [ceil(n / 64)][steps][Format::kTileBytes]
  const u8* x;               // [steps][ceil(tokens / 8)][1024]
  const i32* offset;         // [64 ceil(n / 64)]
  const float* row_scale;    // [64 ceil(n / 64)]
  const void* bias;          // [n] of T, or null
  const i32* row_sum;        // [tokens]
  const float* token_scale;  // [tokens]
  void* y;                   // [tokens, n] of T
  i32* parts;                // [cut_tiles * cuts][kPanels][kTokens * 64]
  u32* arrived;              // [cut_tiles][kPanels][kSlices], zero between launches
  int tokens, n, steps;      // steps: ceil(k / 128)
  int cut_tiles, cuts;       // each of the first tiles is shared by `cuts` blocks, at most `steps`, along k
};

// Steps [first, last) of an output tile. Token tiles are counted fastest, so that neighbours in time share weights.
struct Segment {
  int tile, first, last;
  template <class C>
  TESSERA_DEVICE int token(const WideArgs& p) const { return tile % div_up(p.tokens, C::kTokens) * C::kTokens; }
  template <class C>
  TESSERA_DEVICE int row(const WideArgs& p) const { return tile / div_up(p.tokens, C::kTokens) * C::kTileRows; }
};

// This block's segments in order: its run of steps of a tile that is cut, then every gridDim-th of the others.
template <class C>
class Share {
 public:
  TESSERA_DEVICE explicit Share(const WideArgs& p)
      : cut_(static_cast<int>(blockIdx.x) < p.cut_tiles * p.cuts), tile_(p.cut_tiles + blockIdx.x) {}

  TESSERA_DEVICE bool next(const WideArgs& p, Segment& s) {
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

// Position in a ring of kStages buffers, and the parity of the phase in which a buffer is filled.
template <int kStages>
struct Turn {
  int stage = 0;
  u32 parity = 0;
  template <int kSteps = 1>
  TESSERA_DEVICE void advance() {
    static_assert(kSteps <= kStages, "at most once around");
    if ((stage += kSteps) >= kStages) stage -= kStages, parity ^= 1;
  }
};

}  // namespace tessera::gemm
