// Ways from 4-bit codes to an operand of int8 wgmma, on trial in stream_gemm.cuh. All compute the same product; they
// differ in instructions. Words hold 8 codes of one row: columns 4 t ... in the low, 16 + 4 t ... in the high nibbles.
//
// A way says what operand A is (u8 or i8), what a row's two parameter bytes are, and unpacks two words (rows g, g + 8).
// `parameters` holds them in bytes 0, 1 (row g) and 2, 3 (row g + 8). kOffset is what the operand has too much.
#pragma once
#include "common/bits.cuh"
#include "common/types.cuh"

namespace tessera::probe {

TESSERA_DEVICE u32 low_nibbles(u32 w) { return w & 0x0F0F0F0Fu; }
TESSERA_DEVICE u32 high_nibbles(u32 w) { return (w >> 4) & 0x0F0F0F0Fu; }

struct WayDefaults {
  using A = u8;
  static constexpr int kTileBytes = 4096 + 128;  // 64 x 128 codes [2][128 threads][16 bytes], then parameters
  static constexpr bool kShared = false;         // operand A stays in shared memory
  static constexpr bool kRowMajor = false;  // codes lie as they were quantized, not in fragment order
  static constexpr bool kPartial = false;   // group scales on partial sums
};

// One scale a row: the code is the operand.
struct Channel : WayDefaults {
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32) {
    lo = low_nibbles(w), hi = high_nibbles(w);
  }
};

// int8 weights, 64 rows of 128 bytes under the 128-byte swizzle: nothing to unpack.
struct Bytes : WayDefaults {
  using A = i8;
  static constexpr int kTileBytes = 8192;
  static constexpr bool kShared = true;
};

// (s, 128 - z s): q s + 128 - z s by one multiply-add on four lanes.
struct MultiplyAdd : WayDefaults {
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32 p) {
    const u32 s = (p >> 8 * kByte) & 0xff, o = broadcast_byte<kByte + 1>(p);
    lo = low_nibbles(w) * s + o, hi = high_nibbles(w) * s + o;
  }
};

// The same arithmetic on codes in row order: many narrow loads and a shuffle of nibbles.
struct RowOrder : MultiplyAdd {
  static constexpr bool kRowMajor = true;
};

// a + b in four lanes modulo 256, which Hopper has no instruction for: what __vadd4 becomes.
TESSERA_DEVICE u32 add4(u32 a, u32 b) {
  const u32 sum = (a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu);
  return sum ^ ((a ^ b) & 0x80808080u);
}

// (s, -z s mod 256): subtraction after multiplication, lane by lane, as QServe does it.
struct SubtractAfter : WayDefaults {
  using A = i8;
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32 p) {
    const u32 s = (p >> 8 * kByte) & 0xff, minus = broadcast_byte<kByte + 1>(p);
    lo = add4(low_nibbles(w) * s, minus), hi = add4(high_nibbles(w) * s, minus);
  }
};

// (s, -z mod 256): subtraction before multiplication. Signed lanes do not multiply side by side in one register.
struct SubtractBefore : WayDefaults {
  using A = i8;
  static TESSERA_DEVICE u32 scaled(u32 d, i32 s) {
    i32 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = static_cast<i32>(static_cast<i8>(d >> 8 * i)) * s;
    return pack_bytes(v[0], v[1], v[2], v[3]);
  }
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32 p) {
    const u32 s = (p >> 8 * kByte) & 0xff, minus = broadcast_byte<kByte + 1>(p);
    lo = scaled(add4(low_nibbles(w), minus), s), hi = scaled(add4(high_nibbles(w), minus), s);
  }
};

// (s, z) through fp16 lanes, with every trick: codes become 1024 + q by OR, results leave in the mantissa of 1536 + v.
struct HalfFloats : WayDefaults {
  using A = i8;
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32 p) {
    const u32 s16 =
        pack2<f16>(static_cast<float>((p >> 8 * kByte) & 0xff), static_cast<float>((p >> 8 * kByte) & 0xff));
    const u32 z16 = (broadcast_byte<kByte + 1>(p) & 0x00ff00ffu) | 0x64006400u;
    u32 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 h = lop3<kAndOr>(w >> 4 * i, 0x000F000Fu, 0x64006400u);
      v[i] = fma2<f16>(sub2<f16>(h, z16), s16, 0x66006600u);
    }
    lo = prmt(v[0], v[2], 0x6240), hi = prmt(v[1], v[3], 0x6240);
  }
};

// (s, z) one weight at a time: integer to float, multiply-add, float to integer, pack. The board model's "naive" path.
struct Naive : WayDefaults {
  using A = i8;
  static TESSERA_DEVICE u32 four(u32 nibbles, float s, float zs) {
    i32 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = to_s8(static_cast<float>((nibbles >> 8 * i) & 0xff) * s - zs);
    return pack_bytes(v[0], v[1], v[2], v[3]);
  }
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32 p) {
    const float s = static_cast<float>((p >> 8 * kByte) & 0xff);
    const float zs = s * static_cast<float>((p >> (8 * kByte + 8)) & 0xff);
    lo = four(low_nibbles(w), s, zs), hi = four(high_nibbles(w), s, zs);
  }
};

// (s, 8): codes go in as q - 8, and every group's integer sums are scaled into floats.
struct PartialSums : WayDefaults {
  using A = i8;
  static constexpr bool kPartial = true;
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32) {
    // q - 8 in four lanes: q + 120 never carries, and differs from q - 8 by 128.
    lo = (low_nibbles(w) + 0x78787878u) ^ 0x80808080u, hi = (high_nibbles(w) + 0x78787878u) ^ 0x80808080u;
  }
};

// MultiplyAdd and kExtra more integer instructions for each 8 weights: the board model's k, turned like a knob.
template <int kExtra>
struct Padded : WayDefaults {
  template <int kByte>
  static TESSERA_DEVICE void word(u32& lo, u32& hi, u32 w, u32 p) {
    MultiplyAdd::template word<kByte>(lo, hi, w, p);
#pragma unroll
    for (int i = 0; i < kExtra; ++i) {
      u32& x = i % 2 ? lo : hi;  // flips back and forth: kExtra is a multiple of 4
      asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(x) : "r"(w), "r"(p));
    }
  }
};

// Operand registers of step j out of a thread's codes: rows g in a[0], a[2], rows g + 8 in a[1], a[3].
template <class Way>
TESSERA_DEVICE void unpack_step(u32 (&a)[4], const uint4 (&codes)[2], int j, u32 p) {
  const uint4 w = codes[j / 2];
  Way::template word<0>(a[0], a[2], j % 2 ? w.z : w.x, p);
  Way::template word<2>(a[1], a[3], j % 2 ? w.w : w.y, p);
}

}  // namespace tessera::probe
