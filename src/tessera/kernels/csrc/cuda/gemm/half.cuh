// int4 weights as operand A of 16-bit matrix products. What lies where: kernels/cuda/gemm/half_weights.py.
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

// Two codes q in bits 0-3 (kHigh: 4-7) of the halves of a word, as (q - z) / kUnit. `minus_zero`: -z / kUnit.
template <class T>
struct Plain;
template <>
struct Plain<f16> {
  static constexpr float kUnit = 512;                          // 2^24 / 2^15
  static constexpr u32 kLow = 0x78007800, kHigh = 0x68006800;  // 2^15, 2^11
};
template <>
struct Plain<bf16> {
  static constexpr float kUnit = 64;                           // 2^133 / 2^127
  static constexpr u32 kLow = 0x7F007F00, kHigh = 0x7D007D00;  // 2^127, 2^123
};
template <class T, bool kHigh>
TESSERA_DEVICE u32 plain(u32 word, u32 minus_zero) {
  if constexpr (kHigh) return fma2<T>(word & 0x00F000F0u, Plain<T>::kHigh, minus_zero);
  else return fma2<T>(word & 0x000F000Fu, Plain<T>::kLow, minus_zero);
}
template <class T>
TESSERA_DEVICE u32 minus_plain(u32 zero) { return fma2<T>(zero * 0x00010001u, Plain<T>::kLow ^ 0x80008000u, 0); }

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

}  // namespace tessera::half
