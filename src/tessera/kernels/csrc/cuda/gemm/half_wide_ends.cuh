// The ends of a tile: parts of sums that several blocks computed are put together, sums become numbers and are stored.
#pragma once
#include "common/matrix.cuh"
#include "common/sync.cuh"
#include "common/wgmma.cuh"
#include "gemm/half_wide_work.cuh"

namespace tessera::half {

// Up to eight neighbouring rows of one token; `aligned`: all eight, by one access.
template <class T>
TESSERA_DEVICE void store_rows(T* y, int rows, uint4 v, bool aligned) {
  if (aligned) {
    *reinterpret_cast<uint4*>(y) = v;
    return;
  }
  u64 word = v.x | static_cast<u64>(v.y) << 32;
#pragma unroll 1
  for (int i = 0; i < 8 && i < rows; ++i) {
    y[i].bits = static_cast<u16>(word);
    word = i == 3 ? v.z | static_cast<u64>(v.w) << 32 : word >> 16;
  }
}

// What one warpgroup does with the sums of its 64 rows of a tile, from the last product to memory.
template <class C>
class WideEnd {
 public:
  using T = typename C::T;
  using Sums = float[C::kTokens / 2];

  TESSERA_DEVICE WideEnd(const WideArgs& p, const WideSmem<C>& smem, int panel, const WideSegment& s, u32& output)
      : p_(p), smem_(smem), s_(s), panel_(panel), thread_(thread_now() % kWarpgroup), me_(blockIdx.x % p.cuts),
        holds_first_(me_ < 2), output_(output) {}

  TESSERA_DEVICE void run(Sums& acc) {
    u32 mine = (1u << C::kSlices) - 1;
    if (s_.last - s_.first < p_.steps) mine = share_parts(mine, acc);
    if (!mine) return;
    aim();
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) {
      if (mine >> q & 1) store_slice(q, acc);
    }
  }

 private:
  static constexpr int kBatches = C::kSliceTokens / 8;  // of four sums of a thread in a slice
  static constexpr int kLooks = 8;                      // for parts of others, each about 700 clocks

  // Slices that this warpgroup stores, as a mask: it has added up the parts of all blocks there, in the order of k, so
  // that results do not depend on who came last. It leaves the other blocks' slices for them, and for a while expects
  // its own; what has not come by then is left too, for whoever is the last. Parts of the first two blocks may be added
  // either way round, so these keep theirs in registers; the others leave theirs for themselves as well.
  TESSERA_DEVICE u32 share_parts(u32 slices, Sums& acc) {
    u32 own = 0;
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) own |= static_cast<u32>(q * p_.cuts / C::kSlices == me_) << q;
    leave(slices & ~own, acc);
    const u32 last = votes<true>(slices & ~own), complete = votes<false>(own);
    leave(holds_first_ ? own & ~complete : own, acc);
    const u32 mine = last | complete | votes<true>(own & ~complete);
    if (thread_ < C::kSlices && (mine >> thread_ & 1)) counters()[thread_] = 0;
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) {
      if (mine >> q & 1) add_up(q, acc);
    }
    return mine;
  }

  // Which of `slices` all other blocks have left their parts of: counting this one from now on, or without that, but
  // looking several times.
  template <bool kArrive>
  TESSERA_DEVICE u32 votes(u32 slices) {
    if (!slices) return 0;
    named_barrier_sync(1 + panel_, kWarpgroup);  // what its threads wrote is released below
    if (thread_ < kWarp) {
      const bool asked = slices >> thread_ & 1;
      u32 *counter = counters() + thread_, all = 0;
#pragma unroll 1
      for (int turn = 0; turn < (kArrive ? 1 : kLooks) && all != slices; ++turn) {
        const u32 before = !asked ? 0 : kArrive ? add_acquire_release(counter) : load_acquire(counter);
        all = __ballot_sync(0xffffffffu, asked && before == static_cast<u32>(p_.cuts - 1));
      }
      if (thread_ == 0) store_shared_word(smem_.votes(panel_), all);
    }
    named_barrier_sync(1 + panel_, kWarpgroup);
    return load_shared_word(smem_.votes(panel_));
  }

  TESSERA_DEVICE u32* counters() const { return p_.arrived + (s_.tile * C::kPanels + panel_) * C::kSlices; }
  // Where this thread's sums lie that the b-th block of this tile computed.
  TESSERA_DEVICE float* part_of(int b) const {
    const i64 slot = static_cast<i64>(s_.tile * p_.cuts + b) * C::kPanels + panel_;
    return p_.parts + slot * (64 * C::kTokens) + thread_ * 4;
  }

  TESSERA_DEVICE void leave(u32 slices, const Sums& acc) {
    float* part = part_of(me_);
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) {
      if (!(slices >> q & 1)) continue;
#pragma unroll
      for (int i = q * kBatches; i < (q + 1) * kBatches; ++i)
        *reinterpret_cast<float4*>(part + i * 512) = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
    }
  }

  TESSERA_DEVICE void add_up(int q, Sums& acc) {
    float* sums = acc + 4 * q * kBatches;
#pragma unroll
    for (int i = 0; i < 4 * kBatches; ++i) sums[i] = holds_first_ ? sums[i] : 0;
#pragma unroll 1
    for (int b = 0; b < p_.cuts; ++b) {
      if (holds_first_ && b == me_) continue;
      const float* part = part_of(b) + q * kBatches * 512;
#pragma unroll
      for (int i = 0; i < kBatches; ++i) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(part + i * 512));
        sums[4 * i] += x.x, sums[4 * i + 1] += x.y, sums[4 * i + 2] += x.z, sums[4 * i + 3] += x.w;
      }
    }
  }

  // What storing needs: this thread's two rows, where it puts sums and gets y in shared memory, where y goes.
  TESSERA_DEVICE void aim() {
    const int lane = thread_ % kWarp, warp = thread_ / kWarp, first = s_.row<C>(p_) + panel_ * 64;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + warp * 16 + lane / 4 + h * 8;
      const bool inside = row < p_.n;
      scale_[h] = !C::Format::kGroup && inside ? p_.row[row] * C::kUnit : 1.f;
      bias_[h] = p_.bias && inside ? to_float(static_cast<const T*>(p_.bias)[row]) : 0.f;
    }
    put_ = swizzle_128b((lane / 16 * 8 + lane % 8) * 128 + warp * 32 + lane / 8 % 2 * 16);
    get_ = swizzle_128b(thread_ / 8 * 128 + thread_ % 8 * 16);
    token_ = s_.token<C>(p_) + thread_ / 8, row_ = first + thread_ % 8 * 8;
    y_ = static_cast<T*>(p_.y) + static_cast<i64>(token_) * p_.n + row_;
  }

  // kChunkTokens at a time through shared memory, in which tokens become rows of 128 bytes: whole lines of y. Two
  // buffers take turns, so that one barrier does.
  TESSERA_DEVICE void store_slice(int q, const Sums& acc) {
#pragma unroll
    for (int t = q * C::kSliceTokens; t < (q + 1) * C::kSliceTokens; t += C::kChunkTokens) {
      const u32 buffer = smem_.output(panel_) + output_ * (C::kOutputBytes / 2);
      output_ ^= 1;
#pragma unroll
      for (int c = 0; c < C::kChunkTokens; c += 16) {
        u32 f[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = (t + c) / 2 + 2 * i, h = i % 2;
          f[i] = pack2<T>(acc[j] * scale_[h] + bias_[h], acc[j + 1] * scale_[h] + bias_[h]);
        }
        stmatrix_trans(buffer + c * 128 + put_, f);
      }
      named_barrier_sync(1 + panel_, kWarpgroup);
#pragma unroll
      for (int c = 0; c < C::kChunkTokens; c += 16) {
        const uint4 v = load_shared(buffer + c * 128 + get_);
        if (token_ + t + c < p_.tokens && row_ < p_.n)
          store_rows(y_ + static_cast<i64>(t + c) * p_.n, p_.n - row_, v, p_.n % 8 == 0);
      }
    }
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const WideSegment s_;
  const int panel_, thread_, me_;  // me_: which of the blocks of a cut tile
  const bool holds_first_;
  float scale_[2], bias_[2];
  u32 put_, get_;
  u32& output_;
  int token_, row_;
  T* y_;
};

}  // namespace tessera::half
