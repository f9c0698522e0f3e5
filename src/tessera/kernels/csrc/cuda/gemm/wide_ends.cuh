// The ends of a tile: parts of sums that several blocks computed are put together, sums become numbers and are stored.
#pragma once
#include "common/matrix.cuh"
#include "gemm/wide_work.cuh"

namespace tessera::gemm {

// (sum, scale) of a tile's tokens and (offset, scale, bias, 0) of its rows into shared memory, by one warp.
template <class C>
TESSERA_DEVICE void stage_ends(const WideArgs& p, const WideSmem<C>& smem, int buffer, const Segment& s) {
#pragma unroll 4  // loads at once; more registers a producer has not
  for (int i = lane_id(); i < C::kTokens; i += kWarp) {
    const int m = s.token<C>(p) + i;
    const u32 sum = m < p.tokens ? p.row_sum[m] : 0;
    const float scale = m < p.tokens ? p.token_scale[m] : 0.f;
    store_shared(smem.ends(buffer) + i * 8, uint2{sum, __float_as_uint(scale)});
  }
#pragma unroll 2
  for (int i = lane_id(); i < C::kTileRows; i += kWarp) {
    const int r = s.row<C>(p) + i;
    const bool inside = r < p.n;
    const i32 offset = inside ? p.offset[r] : 0;
    const float scale = inside ? p.row_scale[r] : 0.f;
    const float bias = inside && p.bias ? to_float(static_cast<const typename C::T*>(p.bias)[r]) : 0.f;
    store_shared(smem.end_rows(buffer) + i * 16,
                 uint4{static_cast<u32>(offset), __float_as_uint(scale), __float_as_uint(bias), 0});
  }
}

// What one warpgroup does with the sums of its 64 rows of a tile, from the last product to memory.
template <class C>
class TileEnd {
 public:
  using T = typename C::T;
  using Sums = i32[C::kTokens / 2];

  TESSERA_DEVICE TileEnd(const WideArgs& p, const WideSmem<C>& smem, int panel, int team, int buffer, const Segment& s,
                         u32& output)
      : p_(p), smem_(smem), s_(s), panel_(panel), team_(team), consumer_(team * C::kPanels + panel),
        thread_(thread_now() % kWarpgroup), buffer_(buffer), output_(output) {}

  TESSERA_DEVICE void run(Sums& acc) {
    u32 mine = ((1u << kTeamSlices) - 1) << team_ * kTeamSlices;
    if constexpr (C::kTeams == 2) exchange(acc);
    if (s_.last - s_.first < p_.steps) mine = share_parts(mine, acc);
    if (!mine) return;
    aim();
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) {
      if (mine >> q & 1) store_slice(q, acc);
    }
  }

 private:
  static constexpr int kTeamSlices = C::kSlices / C::kTeams;
  static constexpr int kBatches = C::kSliceTokens / 8;  // of four sums of a thread in a slice
  static constexpr int kPatience = 8;  // questions of 700 clocks: blocks that started together end as close

  // Each team keeps half of the slices and gets the other's sums of them, one slice at a time.
  TESSERA_DEVICE void exchange(Sums& acc) {
    const u32 mine = smem_.output(consumer_) + thread_ * 16;
    const u32 theirs = smem_.output((1 - team_) * C::kPanels + panel_) + thread_ * 16;
    if (thread_ == 0) bulk_wait_read<0>();  // y out of the buffers
    both_teams();
#pragma unroll
    for (int q = 0; q < kTeamSlices; ++q) {
      if (team_ == 0) put(mine, q + kTeamSlices, acc);
      else put(mine, q, acc);
      both_teams();
      if (team_ == 0) take(theirs, q, acc);
      else take(theirs, q + kTeamSlices, acc);
      both_teams();
    }
  }
  TESSERA_DEVICE static void put(u32 to, int q, const Sums& acc) {
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      const i32* sums = acc + 4 * (q * kBatches + i);
      store_shared(to + i * 2048, uint4{u32(sums[0]), u32(sums[1]), u32(sums[2]), u32(sums[3])});
    }
  }
  TESSERA_DEVICE static void take(u32 from, int q, Sums& acc) {
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      i32* sums = acc + 4 * (q * kBatches + i);
      const uint4 x = load_shared(from + i * 2048);
      sums[0] += x.x, sums[1] += x.y, sums[2] += x.z, sums[3] += x.w;
    }
  }
  TESSERA_DEVICE void both_teams() const { named_barrier_sync(1 + C::kConsumers + panel_, 2 * kWarpgroup); }

  // Each block leaves its parts of the others' slices, then waits a little for theirs of its own. If they do not come
  // it leaves its own as well, and who comes last adds up: nobody depends on blocks that may not run yet. The mask of
  // the team's slices that this warpgroup has put together. Sums are integers: the order of additions does not matter.
  TESSERA_DEVICE u32 share_parts(u32 team, Sums& acc) {
    const int blocks = p_.cuts, me = blockIdx.x % blocks;
    u32 own = 0;
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) own |= static_cast<u32>(q % kTeamSlices * blocks / kTeamSlices == me) << q;
    own &= team;
    leave(team & ~own, acc);
    u32 last = votes(team & ~own, blocks - 1, true);
    const u32 there = votes(own, blocks - 1, false);
    if (there != own) leave(own & ~there, acc);
    last |= there | votes(own & ~there, blocks - 1, true);
    if (thread_ < C::kSlices && (last >> thread_ & 1)) counters()[thread_] = 0;
#pragma unroll 1
    for (int b = 1; b < blocks; ++b) {
      const i32* part = part_of((me + b) % blocks);
#pragma unroll
      for (int q = 0; q < C::kSlices; ++q) {
        if (last >> q & 1) add(part, q, acc);
      }
    }
    return last;
  }

  // Which of `slices` all `others` have left their parts of; `arrive`: counting this block from now on. Otherwise it
  // asks until they have, but not often.
  TESSERA_DEVICE u32 votes(u32 slices, u32 others, bool arrive) {
    if (!slices) return 0;
    named_barrier_sync(1 + consumer_, kWarpgroup);  // what its threads wrote is released below
    if (thread_ < kWarp) {
      const bool asked = slices >> thread_ & 1;
      u32* counter = counters() + thread_;
      u32 all = 0;
#pragma unroll 1
      for (int tries = arrive ? 1 : kPatience; tries > 0 && all != slices; --tries) {
        const u32 before = !asked ? 0 : arrive ? add_acquire_release(counter) : load_acquire(counter);
        all = __ballot_sync(0xffffffffu, asked && before == others);
      }
      if (thread_ == 0) store_shared_word(smem_.votes(consumer_), all);
    }
    named_barrier_sync(1 + consumer_, kWarpgroup);
    return load_shared_word(smem_.votes(consumer_));
  }

  TESSERA_DEVICE u32* counters() const { return p_.arrived + (s_.tile * C::kPanels + panel_) * C::kSlices; }
  // Where this thread's sums lie that the b-th block of this tile computed.
  TESSERA_DEVICE i32* part_of(int b) const {
    const i64 slot = static_cast<i64>(s_.tile * p_.cuts + b) * C::kPanels + panel_;
    return p_.parts + slot * (kRows * C::kTokens) + thread_ * 4;
  }

  TESSERA_DEVICE void leave(u32 slices, const Sums& acc) {
    i32* part = part_of(blockIdx.x % p_.cuts);
#pragma unroll
    for (int q = 0; q < C::kSlices; ++q) {
      if (!(slices >> q & 1)) continue;
#pragma unroll
      for (int i = q * kBatches; i < (q + 1) * kBatches; ++i) {
        *reinterpret_cast<int4*>(part + i * 512) = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
      }
    }
  }

  TESSERA_DEVICE static void add(const i32* part, int q, Sums& acc) {
    uint4 x[kBatches];
#pragma unroll
    for (int i = 0; i < kBatches; ++i) x[i] = __ldcg(reinterpret_cast<const uint4*>(part + (q * kBatches + i) * 512));
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      i32* sums = acc + 4 * (q * kBatches + i);
      sums[0] += x[i].x, sums[1] += x[i].y, sums[2] += x[i].z, sums[3] += x[i].w;
    }
  }

  // What storing needs: this thread's two rows, where it puts y in shared memory, where the warpgroup's y goes.
  TESSERA_DEVICE void aim() {
    const int lane = thread_ % kWarp, warp = thread_ / kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32 at = smem_.end_rows(buffer_) + (panel_ * kRows + warp * 16 + lane / 4 + h * 8) * 16;
      const uint4 row = load_shared(at);
      offset_[h] = row.x, scale_[h] = __uint_as_float(row.y), bias_[h] = __uint_as_float(row.z);
    }
    tokens_ = smem_.ends(buffer_) + lane % 4 * 16;
    put_ = swizzle_128b((lane / 16 * 8 + lane % 8) * 128 + warp * 32 + lane / 8 % 2 * 16);
    token_ = s_.token<C>(p_), row_ = s_.row<C>(p_) + panel_ * kRows;
  }

  // A slice through shared memory, in which tokens become rows of 128 bytes, and from there to memory by the copy
  // engine, while this warpgroup goes on. Buffers take turns, so that one barrier does.
  TESSERA_DEVICE void store_slice(int q, const Sums& acc) {
    const u32 buffer = smem_.output(consumer_) + output_ * C::kStoreBytes;
    if (++output_ == C::kStoreBuffers) output_ = 0;
    const int first = q * C::kSliceTokens;
    constexpr int kHeld = C::kConsumers == 4 ? 16 : C::kSliceTokens;  // tokens: as registers allow
#pragma unroll
    for (int i = 0; i < C::kSliceTokens; i += kHeld) {
      uint4 tokens[kHeld / 8];  // asked for at once
#pragma unroll
      for (int j = 0; j < kHeld / 8; ++j) tokens[j] = load_shared(tokens_ + (first + i + j * 8) * 8);
#pragma unroll
      for (int j = 0; j < kHeld; j += 16) {
        const i32* a = acc + (first + i + j) / 2;
        const uint4 t0 = tokens[j / 8], t1 = tokens[j / 8 + 1];
        const u32 f[4] = {finished(0, a[0], a[1], t0), finished(1, a[2], a[3], t0), finished(0, a[4], a[5], t1),
                          finished(1, a[6], a[7], t1)};
        stmatrix_trans(buffer + (i + j) * 128 + put_, f);
      }
    }
    fence_async();
    if (thread_ == 0) bulk_wait_read<C::kStoreBuffers - 2>();  // the next buffer is free
    named_barrier_sync(1 + consumer_, kWarpgroup);
    if (p_.n % 8) store_each(buffer, token_ + first);
    else if (thread_ == 0) tensor_store(*p_.map, row_, token_ + first, buffer), bulk_commit();
  }
  // One number at a time, where rows of y do not begin at multiples of 16 bytes.
  TESSERA_DEVICE void store_each(u32 buffer, int token) const {
    const int row = row_ + thread_ % 8 * 8, rows = min(8, p_.n - row);
#pragma unroll 1
    for (int i = thread_ / 8; i < min(C::kSliceTokens, p_.tokens - token); i += kWarpgroup / 8) {
      const uint4 v = load_shared(buffer + swizzle_128b(i * 128 + thread_ % 8 * 16));
      T* y = static_cast<T*>(p_.y) + static_cast<i64>(token + i) * p_.n + row;
      u64 word = v.x | static_cast<u64>(v.y) << 32;
#pragma unroll 1
      for (int r = 0; r < rows; ++r) {
        y[r].bits = static_cast<u16>(word);
        word = r == 3 ? v.z | static_cast<u64>(v.w) << 32 : word >> 16;
      }
    }
  }

  // Sums of row h and two tokens (sum, scale, sum, scale) as a word of T.
  TESSERA_DEVICE u32 finished(int h, i32 first, i32 second, uint4 tokens) const {
    return pack2<T>(finish(first, offset_[h], tokens.x, scale_[h], __uint_as_float(tokens.y), bias_[h]),
                    finish(second, offset_[h], tokens.z, scale_[h], __uint_as_float(tokens.w), bias_[h]));
  }

  const WideArgs& p_;
  const WideSmem<C>& smem_;
  const Segment s_;
  const int panel_, team_, consumer_, thread_, buffer_;
  i32 offset_[2];
  float scale_[2], bias_[2];
  u32 tokens_, put_;
  u32& output_;
  int token_, row_;
};

}  // namespace tessera::gemm
