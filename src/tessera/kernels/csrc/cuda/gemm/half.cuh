// int4 weights as operand A of 16-bit matrix products, and a block's share of the work. What lies where:
// kernels/cuda/gemm/half_weights.py.
#pragma once
#include "common/bits.cuh"
#include "common/types.cuh"

namespace tessera::half {

constexpr int kColumns = 128;                      // of a weight tile: a step of K
constexpr int kCodeBytes = 4096, kParamBytes = 160;  // codes of 64 rows of a tile, parameters of one of their groups

// How weights are stored. kGroup: columns of a group (32, 64 or 128), 0 where a row has one scale.
template <int kGroup_>
struct Int4 {
  static constexpr int kGroup = kGroup_, kGroups = kGroup ? kColumns / kGroup : 0;
  static constexpr int kBytes = kCodeBytes + kGroups * kParamBytes;  // of 64 rows
  static constexpr int kPairs = kGroup ? kGroup / 32 : 4;  // k = 32 steps that share parameters
};

// One instruction for two codes: bits 0-3 (kHigh: 4-7) of each half of a word under the bits of a number whose last
// places they are. bf16 has too few places for bits 4-7, so there the word is shifted.
template <class T, bool kHigh>
TESSERA_DEVICE u32 magic(u32 word) {
  if constexpr (is_same<T, bf16>::value) return lop3<kAndOr>(kHigh ? word >> 4 : word, 0x000F000Fu, 0x43004300u);
  else if constexpr (kHigh) return lop3<kAndOr>(word, 0x00F000F0u, 0x54005400u);
  else return lop3<kAndOr>(word, 0x000F000Fu, 0x64006400u);
}
// What `magic` makes of two codes `zero`, negative: 1024 + z or 64 + z in fp16, 128 + z in bf16.
template <class T, bool kHigh>
TESSERA_DEVICE u32 negative_magic(u32 zero) {
  if constexpr (is_same<T, bf16>::value) return zero * 0x00010001u + 0xC300C300u;
  else if constexpr (kHigh) return zero * 0x00100010u + 0xD400D400u;
  else return zero * 0x00010001u + 0xE400E400u;
}

// Parameters of a thread's rows g and g + 8 of its warp's 16, as stored.
struct RowPair {
  u32 scales, zeros;  // two fp16; bits 0-3 and 4-7
};
// `tile`: of 64 rows; warp: which 16 of them.
template <class Format>
TESSERA_DEVICE RowPair load_pair(u32 tile, int group, int warp) {
  const u32 at = tile + kCodeBytes + group * kParamBytes, pair = 8 * warp + lane_id() / 4;
  return {load_shared_word(at + pair * 4), load_shared_byte(at + 128 + pair)};
}
TESSERA_DEVICE RowPair whole_row(float zero, float zero8) {
  return {0, static_cast<u32>(zero) | static_cast<u32>(zero8) << 4};
}

// Where a launch's tiles are cut: the first `split_tiles` into runs of `quota` steps, at most `steps` and one a block.
struct Work {
  int steps, split_tiles, quota, tiles;
};

// Steps [first, last) of an output tile.
struct Segment {
  int tile, first, last;
};

// A block's segments in order: a run of the tiles that are cut, then every gridDim-th of the others.
class Share {
 public:
  TESSERA_DEVICE explicit Share(const Work& w)
      : at_(min(static_cast<int>(blockIdx.x) * w.quota, w.split_tiles * w.steps)),
        end_(min(at_ + w.quota, w.split_tiles * w.steps)), tile_(w.split_tiles + blockIdx.x) {}

  TESSERA_DEVICE bool next(const Work& w, Segment& s) {
    if (at_ < end_) {
      const int tile = at_ / w.steps, first = at_ - tile * w.steps;
      s = {tile, first, min(w.steps, first + end_ - at_)};
      at_ += s.last - s.first;
      return true;
    }
    s = {tile_, 0, w.steps};
    tile_ += gridDim.x;
    return s.tile < w.tiles;
  }

 private:
  int at_, end_, tile_;
};

// The blocks that a cut tile is divided among, and where each leaves its part: the first or the second of a block.
struct Parts {
  int first, last;
  const Work& work;
  int tile;
  TESSERA_DEVICE Parts(const Work& w, int tile)
      : first(tile * w.steps / w.quota), last(((tile + 1) * w.steps - 1) / w.quota), work(w), tile(tile) {}
  TESSERA_DEVICE int slot(int block) const { return 2 * block + (block * work.quota / work.steps != tile); }
};

// The thread's index, of which nothing is computed ahead of a main loop, to be kept in registers over it.
TESSERA_DEVICE int late_thread() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}

TESSERA_DEVICE float4 load_written(const float* p) {  // by another block, so past L1
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(p) : "memory");
  return x;
}

}  // namespace tessera::half
