// y[t, n] = sum_k (q[n, k] - z) s x[t, k] + bias[n] for a few tokens: 4-bit weights, 16-bit activations, mma.sync.
//
// Weights are operand A, as small integers: their scale and zero point are applied to fp32 sums at the end of a group,
// sum += s (P - z S), with S the sum of the group's x, which one more product with ones gives. fp16 takes codes as the
// subnormals they are, q 2^-24, bf16 as 128 + q. So a weight costs less than an instruction and is never rounded.
//
// A warp brings 128 x 128 weights a stage, and x, by bulk copies, the weights before the kernel ahead has ended (sm_80:
// cp.async). Eight warps multiply: four by rows, and twice, for stages in turn. The steps of all tiles form one line
// that is cut into equal runs, one a block; parts of a tile are added up in their order by the block that comes last.
#pragma once
#include "common/matrix.cuh"
#include "common/mma.cuh"
#include "common/ring.cuh"
#include "elementwise/dependency.cuh"
#include "gemm/half.cuh"

namespace tessera::half {

template <class T_, int kGroup, int kTokens_, int kStages_>
struct Small {
  using T = T_;
  using Format = Int4<kGroup>;
  static constexpr int kTokens = kTokens_, kStages = kStages_, kTokenTiles = kTokens / 8;
  static constexpr int kRows = 128, kWarps = 8, kConsumers = kWarps * kWarp, kThreads = kConsumers + kWarp;
  static constexpr int kWeightBytes = 2 * Format::kBytes;
  static constexpr int kTokenBytes = kTokens * kColumns * 2;
  static constexpr int kSumStride = kRows + 4;  // floats a token of the merge buffer; the 4 spread its banks
  static constexpr int kSmem = kStages * (kTokenBytes + kWeightBytes) + kTokens * kSumStride * 4;
  static constexpr int kBlocks = kTokens == 8 && kStages <= 6 ? 3 : 2;  // an SM has room for
  static_assert(kStages % 2 == 0, "the two sets of warps take stages in turn");
};

struct SmallArgs {
  const u8* weights;  // [ceil(n / 128)][steps][2][Format::kBytes]
  const float* row;   // [2][128 ceil(n / 128)]: scales and zero points of rows without groups
  const void* x;      // [tokens, k] of T, as `map` describes it (sm_80 has none)
  const void* bias;   // [n] of T, or null
  void* y;            // [tokens, n] of T
  float* parts;       // [2 grid][kTokens][kRows]
  u32* arrived;       // [grid], zero between launches
  int tokens, n, k;
  Work work;
  template <class C>
  TESSERA_DEVICE int token(int tile) const { return tile % div_up(tokens, C::kTokens) * C::kTokens; }
  template <class C>
  TESSERA_DEVICE int panel(int tile) const { return tile / div_up(tokens, C::kTokens); }
};

template <class C>
struct SmallSmem {
  u32 base, full, empty;
  TESSERA_DEVICE u32 x(int stage) const { return base + stage * C::kTokenBytes; }
  TESSERA_DEVICE u32 weights(int stage) const { return x(C::kStages) + stage * C::kWeightBytes; }
  TESSERA_DEVICE static float* sums(u8* dynamic) {
    return reinterpret_cast<float*>(dynamic + C::kStages * (C::kTokenBytes + C::kWeightBytes));
  }
};

// The whole producer warp.
template <class C>
class SmallProducer {
 public:
  TESSERA_DEVICE SmallProducer(const SmallArgs& p, const TensorMap& map, const SmallSmem<C>& smem)
      : p_(p), map_(map), smem_(smem) {}

  TESSERA_DEVICE void run() {
    int ahead = 0;
    each_step([&](int, int stage, u32, const u8* weights) {
      bring_weights(stage, weights);
      return ++ahead < C::kStages;
    });
    await_predecessor();
    int done = 0;
    each_step([&](int step, int stage, u32 phase, const u8* weights) {
      if (done++ >= ahead) {
        await_phase(smem_.empty + stage * 8, phase ^ 1);
        bring_weights(stage, weights);
      }
      bring_x(step, stage);
      return true;
    });
  }

 private:
  template <class F>
  TESSERA_DEVICE void each_step(F f) {
    Share share(p_.work);
    RingPosition<C::kStages> at;
    for (Segment s; share.next(p_.work, s);) {
      token_ = p_.token<C>(s.tile);
      const i64 first = static_cast<i64>(p_.panel<C>(s.tile)) * p_.work.steps + s.first;
      const u8* weights = p_.weights + first * C::kWeightBytes;
#pragma unroll 1
      for (int step = s.first; step < s.last; ++step, at.step(), weights += C::kWeightBytes) {
        if (!f(step, at.stage, at.phase, weights)) return;
      }
    }
  }

  TESSERA_DEVICE void bring_weights(int stage, const u8* from) {
    const u32 to = smem_.weights(stage), barrier = smem_.full + stage * 8;
    if constexpr (kBulkCopy) {
      if (lane_id() == 0) {
        mbarrier_arrive_expect(barrier, C::kWeightBytes + C::kTokenBytes);
        bulk_load(to, from, C::kWeightBytes, barrier, policy_evict_first());
      } else if (kArrivals > 1) {
        mbarrier_arrive(barrier);
      }
    } else {
#pragma unroll 4
      for (int i = lane_id() * 16; i < C::kWeightBytes; i += kWarp * 16) cp_async(to + i, from + i);
    }
  }

  // Two panels of 64 columns, tokens in rows of 128 bytes under the 128-byte swizzle; zeros outside of x.
  TESSERA_DEVICE void bring_x(int step, int stage) {
    const u32 to = smem_.x(stage), barrier = smem_.full + stage * 8;
    if constexpr (kBulkCopy) {
      if (lane_id() == 0) {
        tensor_load(to, map_, step * kColumns, token_, barrier);
        tensor_load(to + C::kTokenBytes / 2, map_, step * kColumns + kColumns / 2, token_, barrier);
      }
    } else {
      for (int i = lane_id(); i < C::kTokens * 16; i += kWarp) {
        const int row = i / 16, chunk = i % 16, column = step * kColumns + chunk * 8;
        const bool inside = token_ + row < p_.tokens && column < p_.k;
        const i64 from = inside ? static_cast<i64>(token_ + row) * p_.k + column : 0;
        cp_async(to + chunk / 8 * (C::kTokenBytes / 2) + row * 128 + (chunk % 8 ^ row % 8) * 16,
                 static_cast<const typename C::T*>(p_.x) + from, inside ? 16 : 0);
      }
      cp_async_arrive(barrier);
    }
  }

  const SmallArgs& p_;
  const TensorMap& map_;
  const SmallSmem<C>& smem_;
  int token_ = 0;
};

// Codes as numbers the tensor cores take exactly: (code + kBias) / kUnit in bits 0-3 of each half of a word.
template <class T>
struct Plain;
template <>
struct Plain<f16> {
  static constexpr float kUnit = 16777216.f, kBias = 0;
  static constexpr u32 kOnes = 0x3C003C00;
  static TESSERA_DEVICE u32 of(u32 word) { return word & 0x000F000Fu; }
};
template <>
struct Plain<bf16> {
  static constexpr float kUnit = 1, kBias = 128;
  static constexpr u32 kOnes = 0x3F803F80;
  static TESSERA_DEVICE u32 of(u32 word) { return magic<bf16, false>(word); }
};

// A warp's 32 rows, as two tiles m of 16, by all tokens, n tiles of 8: rows g, g + 8 and tokens 2t, 2t + 1.
template <class C>
class SmallSums {
 public:
  using T = typename C::T;
  using Format = typename C::Format;
  float total[2][C::kTokenTiles][4];

  TESSERA_DEVICE void clear() {
    clear(total);
    start_group();
  }

  // One stage; `warp`: which 32 of its rows. `whole`: zero points of rows without groups.
  TESSERA_DEVICE void add(u32 weights, u32 x, int warp, const RowPair (&whole)[2]) {
    const u32 tile = weights + warp / 2 * Format::kBytes, first = warp % 2 * 2;
    const u32 row = x + lane_id() % 8 * 128;
#pragma unroll(C::kTokens == 8 ? 2 : 1)
    for (int h = 0; h < 2; ++h) {
      uint4 w[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) w[m] = load_shared(tile + h * 2048 + ((first + m) * kWarp + lane_id()) * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        u32 b[C::kTokenTiles][4];
#pragma unroll
        for (int n = 0; n < C::kTokenTiles; ++n) {
          const int chunk = j * 4 + lane_id() / 8 ^ lane_id() % 8;
          ldmatrix(b[n], row + h * (C::kTokenBytes / 2) + n * 1024 + chunk * 16);
        }
        multiply<0>(w, j, b);
        multiply<1>(w, j, b);
        if constexpr (Format::kGroup) {
          const int pair = 2 * h + j;
          if ((pair + 1) % Format::kPairs == 0) {
            RowPair rows[2];
#pragma unroll
            for (int m = 0; m < 2; ++m) rows[m] = load_pair<Format>(tile, pair / Format::kPairs, first + m);
            end_group(rows);
          }
        }
      }
    }
    if constexpr (!Format::kGroup) end_group(whole);
  }

 private:
  using Part = float[2][C::kTokenTiles][4];
  TESSERA_DEVICE static void clear(Part& x) {
#pragma unroll
    for (int i = 0; i < 8 * C::kTokenTiles; ++i) x[i / (4 * C::kTokenTiles)][i / 4 % C::kTokenTiles][i % 4] = 0;
  }
  TESSERA_DEVICE void start_group() {
    clear(part_);
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x_sum_[n][e] = 0;
    }
  }

  // The two words of a k = 16 step among the four of a k = 32 step.
  template <bool kHigh>
  TESSERA_DEVICE static const u32 (&half_of(const u32 (&b)[4]))[2] {
    return *reinterpret_cast<const u32(*)[2]>(b + 2 * kHigh);
  }

  template <bool kHigh>
  TESSERA_DEVICE void multiply(const uint4 (&w)[2], int j, const u32 (&b)[C::kTokenTiles][4]) {
    const u32 ones[4] = {Plain<T>::kOnes, Plain<T>::kOnes, Plain<T>::kOnes, Plain<T>::kOnes};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const u32 g = j ? w[m].z : w[m].x, g8 = j ? w[m].w : w[m].y;
      const u32 a[4] = {Plain<T>::of(g >> 4 * kHigh), Plain<T>::of(g8 >> 4 * kHigh), Plain<T>::of(g >> (8 + 4 * kHigh)),
                        Plain<T>::of(g8 >> (8 + 4 * kHigh))};
#pragma unroll
      for (int n = 0; n < C::kTokenTiles; ++n) mma_16816<T>(part_[m][n], a, half_of<kHigh>(b[n]));
    }
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) mma_16816<T>(x_sum_[n], ones, half_of<kHigh>(b[n]));
  }

  TESSERA_DEVICE void end_group(const RowPair (&rows)[2]) {
    using P = Plain<T>;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float2 s = Format::kGroup ? unpack2<f16>(rows[m].scales) : make_float2(1, 1);
      const float scale[2] = {s.x * P::kUnit, s.y * P::kUnit};
      const float zero[2] = {(static_cast<float>(rows[m].zeros & 15) + P::kBias) / P::kUnit,
                             (static_cast<float>(rows[m].zeros >> 4) + P::kBias) / P::kUnit};
#pragma unroll
      for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          total[m][n][e] += scale[e / 2] * (part_[m][n][e] - zero[e / 2] * x_sum_[n][e]);
        }
      }
    }
    start_group();
  }

  Part part_;
  float x_sum_[C::kTokenTiles][4];
};

// Four neighbouring rows of one token.
template <class T>
TESSERA_DEVICE void store_four(T* y, const T* bias, int row, int n, float4 v) {
  float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] += bias && row + i < n ? to_float(bias[row + i]) : 0.f;
  if (n % 4 == 0 && row < n) {
    *reinterpret_cast<uint2*>(y + row) = make_uint2(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row + i < n) y[row + i] = from_float<T>(x[i]);
  }
}

template <class C>
class SmallConsumer {
 public:
  using T = typename C::T;
  TESSERA_DEVICE SmallConsumer(const SmallArgs& p, const SmallSmem<C>& smem, float* sums, int* flag)
      : p_(p), smem_(smem), sums_(sums), flag_(flag) {}

  TESSERA_DEVICE void run() {
    await_predecessor();
    const int set = warp_id() / 4, warp = warp_id() % 4;
    RingPosition<C::kStages> at;
    if (set) at.step();
    int begun = 0;  // steps of segments before this one
    Share share(p_.work);
    for (Segment s; share.next(p_.work, s);) {
      SmallSums<C> mine;
      mine.clear();
      RowPair whole[2] = {};
      if constexpr (!C::Format::kGroup) load_rows(s, warp, whole);
      const int count = s.last - s.first;
#pragma unroll 1
      for (int i = (begun + set) % 2; i < count; i += 2) {
        await_phase(smem_.full + at.stage * 8, at.phase);
        mine.add(smem_.weights(at.stage), smem_.x(at.stage), warp, whole);
        __syncwarp();
        if (kArrivals > 1 || lane_id() == 0) mbarrier_arrive(smem_.empty + at.stage * 8);
        at.step(), at.step();
      }
      begun += count;
      finish(s, mine);
    }
  }

 private:
  TESSERA_DEVICE void load_rows(const Segment& s, int warp, RowPair (&rows)[2]) const {
    const float* zero = p_.row + padded() + p_.panel<C>(s.tile) * C::kRows + warp * 32 + lane_id() / 4;
#pragma unroll
    for (int m = 0; m < 2; ++m) rows[m] = whole_row(zero[16 * m], zero[16 * m + 8]);
  }
  TESSERA_DEVICE int padded() const { return round_up(p_.n, C::kRows); }

  // Both sets' sums in shared memory, [token][row].
  TESSERA_DEVICE void merge(const SmallSums<C>& mine) {
    const int thread = late_thread(), set = thread / kWarpgroup, warp = thread / kWarp % 4;
    const int g = thread % kWarp / 4, t = thread % 4;
    if (set == 0) named_barrier_sync(1, C::kConsumers);
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& sum = sums_[(8 * n + 2 * t + e % 2) * C::kSumStride + warp * 32 + 16 * m + g + e / 2 * 8];
          sum = mine.total[m][n][e] + (set == 0 ? sum : 0.f);
        }
      }
    }
    if (set == 1) named_barrier_sync(1, C::kConsumers);
    named_barrier_sync(1, C::kConsumers);
  }

  TESSERA_DEVICE void finish(const Segment& s, const SmallSums<C>& mine) {
    const Parts parts(p_.work, s.tile);
    const bool whole = s.last - s.first == p_.work.steps;
    const u32 others = whole ? 0 : parts.last - parts.first;
    u32* arrived = p_.arrived + parts.first;
    // A block that comes after all the others need not write its part for anyone, nor be counted.
    if (threadIdx.x == 0) *flag_ = !whole && load_acquire(arrived) == others;
    merge(mine);
    const bool here = *flag_;
    if (whole) {
      each_four(s, [&](int, int, float4 v) { return v; });
    } else if (here || leave(s, parts, arrived, others)) {
      if (threadIdx.x == 0) *arrived = 0;
      each_four(s, [&](int token, int at, float4 mine) { return add_parts(parts, token, at, here, mine); });
    }
    named_barrier_sync(1, C::kConsumers);  // the merge buffer and the flag are free again
  }

  // Writes this block's part; whether it was the last to do so.
  TESSERA_DEVICE bool leave(const Segment& s, const Parts& parts, u32* arrived, u32 others) {
    float* to = p_.parts + static_cast<i64>(parts.slot(blockIdx.x)) * C::kTokens * C::kRows;
    for (int i = late_thread(); i < tokens(s) * kFours; i += C::kConsumers)
      *reinterpret_cast<float4*>(to + i * 4) = four(i);
    named_barrier_sync(1, C::kConsumers);
    if (threadIdx.x == 0) *flag_ = add_acquire_release(arrived) == others;
    named_barrier_sync(1, C::kConsumers);
    return *flag_;
  }

  TESSERA_DEVICE float4 add_parts(const Parts& parts, int token, int at, bool here, float4 mine) const {
    constexpr int kAhead = 8;
    float4 sum = {};
    for (int first = parts.first; first <= parts.last; first += kAhead) {
      float4 part[kAhead];  // every load is on its way before the first use
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int block = first + i;
        const bool other = block <= parts.last && !(here && block == blockIdx.x);
        part[i] = block <= parts.last ? mine : float4{};
        if (other)
          part[i] = load_written(p_.parts + (static_cast<i64>(parts.slot(block)) * C::kTokens + token) * C::kRows + at);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
    }
    return sum;
  }

  // Every four rows of every token of the tile: value(token, first row, this block's sums) goes to y.
  template <class F>
  TESSERA_DEVICE void each_four(const Segment& s, F value) const {
    const int row = p_.panel<C>(s.tile) * C::kRows;
    for (int i = late_thread(); i < tokens(s) * kFours; i += C::kConsumers) {
      const int token = i / kFours, at = i % kFours * 4;
      float4 v = value(token, at, four(i));
      if constexpr (!C::Format::kGroup) {
        const float4 scale = *reinterpret_cast<const float4*>(p_.row + row + at);
        v.x *= scale.x, v.y *= scale.y, v.z *= scale.z, v.w *= scale.w;
      }
      T* y = static_cast<T*>(p_.y) + static_cast<i64>(p_.token<C>(s.tile) + token) * p_.n;
      store_four<T>(y, static_cast<const T*>(p_.bias), row + at, p_.n, v);
    }
  }

  static constexpr int kFours = C::kRows / 4;
  TESSERA_DEVICE float4 four(int i) const {
    return *reinterpret_cast<const float4*>(sums_ + i / kFours * C::kSumStride + i % kFours * 4);
  }
  TESSERA_DEVICE int tokens(const Segment& s) const { return min(C::kTokens, p_.tokens - p_.token<C>(s.tile)); }

  const SmallArgs& p_;
  const SmallSmem<C>& smem_;
  float* sums_;
  int* flag_;
};

// C::kThreads threads, C::kSmem bytes of dynamic shared memory; any number of blocks that `parts` has room for.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    small(const __grid_constant__ TensorMap map, const u8* weights, const float* row, const typename C::T* x,
          const typename C::T* bias, typename C::T* y, float* parts, u32* arrived, int tokens, int n, int k, int steps,
          int split_tiles, int quota, int tiles) {
  extern __shared__ __align__(1024) u8 dynamic[];
  __shared__ u64 barriers[2 * C::kStages];
  __shared__ int flag;
  const SmallArgs p{weights, row, x, bias, y, parts, arrived, tokens, n, k, {steps, split_tiles, quota, tiles}};
  const SmallSmem<C> smem{smem_address(dynamic), smem_address(barriers), smem_address(barriers + C::kStages)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(smem.full + s * 8, kBulkCopy ? kArrivals : kWarp);
      mbarrier_init(smem.empty + s * 8, 4 * kArrivals);
    }
#if __CUDA_ARCH__ >= 900
    fence_barrier_init();
#endif
  }
  __syncthreads();
  if (warp_id() == C::kWarps) SmallProducer<C>(p, map, smem).run();
  else SmallConsumer<C>(p, smem, smem.sums(dynamic), &flag).run();
}

}  // namespace tessera::half
