// Logits to tokens: greedy, temperature, top-k, top-p, each row with its own parameters, nothing sorted.
//
// Weights exp((logit - best) / temperature) are compared as the integers their bits are and added as fixed-point
// integers, so a row's result depends on no order of additions. The k-th largest weight, and the weight at which the
// largest ones reach top-p, are found by radix descent: histograms of 11, 11 and 10 bits, highest digit first. The
// token is the first in order of ids whose cumulative kept weight exceeds u times the total (inverse transform).
#pragma once
#include "common/reduce.cuh"
#include "common/types.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / kWarp;
constexpr int kBins = 2048;
constexpr i64 kNotFinite = -1;

struct SampleRow {
  double temperature, top_k, top_p, u;  // temperature 0: greedy; top_k 0 and top_p 1: all tokens
};

// 2^40 ths; a weight below 2^-41 counts as nothing. The sum over a vocabulary of 2^23 still fits.
TESSERA_DEVICE u64 mass_of(u32 key) { return __float2ull_rn(__uint_as_float(key) * 1099511627776.0f); }

struct RowScratch {
  u32 low[kBins], high[kBins];  // a histogram's sums as two words: shared memory adds words, and only words, at once
  u64 warp_mass[kSampleWarps];
  u32 warp_count[kSampleWarps];
  u64 found;
  u32 found_bin;
  u32 key_best[kSampleWarps];
  i32 id_best[kSampleWarps];
  i64 token;
};

// Tokens of weight above `key` are kept, and of those that weigh exactly that much the first `ties`.
struct Threshold {
  u32 key, ties;
};

struct RowView {
  const float* logits;
  int vocab;
  float best, temperature;

  // Bits of the weight of a token: they order as weights do.
  TESSERA_DEVICE u32 key(float logit) const { return __float_as_uint(expf(__fdiv_rn(logit - best, temperature))); }

  // f(id, logit) for ids begin + lane, + stride, ... below end. Loads run ahead of uses, whatever f does to memory.
  template <class F>
  TESSERA_DEVICE void each_logit(int begin, int end, int lane, int stride, F f) const {
    constexpr int kAhead = 16;
    for (int first = begin + lane; first < end; first += kAhead * stride) {
      float x[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) x[j] = first + j * stride < end ? logits[first + j * stride] : 0;
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (first + j * stride < end) f(first + j * stride, x[j]);
    }
  }
  // f(id, key) for this thread's part of the whole row.
  template <class F>
  TESSERA_DEVICE void each_key(F f) const {
    each_logit(0, vocab, threadIdx.x, kSampleThreads, [&](int i, float x) { f(i, key(x)); });
  }
};

// Order-preserving map of floats to unsigned integers; NaN of either sign comes out on top.
TESSERA_DEVICE u32 ordered(float x) {
  if (x != x) return 0xffffffffu;
  const u32 bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// First id of the largest logit and that logit's `ordered`, NaN counting as the largest.
TESSERA_DEVICE int find_best(const RowView& row, RowScratch& s, u32* best_key) {
  u32 key = 0;
  int id = row.vocab;
  row.each_logit(0, row.vocab, threadIdx.x, kSampleThreads, [&](int i, float x) {
    const u32 mine = ordered(x);
    if (mine > key) key = mine, id = i;
  });
  const auto merge = [&](u32 other_key, int other_id) {
    if (other_key > key || (other_key == key && other_id < id)) key = other_key, id = other_id;
  };
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    merge(__shfl_xor_sync(0xffffffffu, key, lanes), __shfl_xor_sync(0xffffffffu, id, lanes));
  if (lane_id() == 0) s.key_best[threadIdx.x / kWarp] = key, s.id_best[threadIdx.x / kWarp] = id;
  __syncthreads();
  key = s.key_best[lane_id()], id = s.id_best[lane_id()];
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    merge(__shfl_xor_sync(0xffffffffu, key, lanes), __shfl_xor_sync(0xffffffffu, id, lanes));
  *best_key = key;
  return id;
}

// Inclusive sum over the lanes before and at each lane.
template <class T>
TESSERA_DEVICE T warp_scan(T x) {
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const T left = __shfl_up_sync(0xffffffffu, x, d);
    if (lane_id() >= d) x += left;
  }
  return x;
}

// Finds, from the highest bin down, the bin where the running sum reaches `target`, and the sum before it. One warp,
// 64 bins a lane.
TESSERA_DEVICE void find_bin(RowScratch& s, u64 target) {
  constexpr int kPerLane = kBins / kWarp;
  const auto in_bin = [&](int bin) { return static_cast<u64>(s.high[bin]) << 32 | s.low[bin]; };
  const int top = kBins - 1 - lane_id() * kPerLane;
  u64 mine = 0;
  for (int i = 0; i < kPerLane; ++i) mine += in_bin(top - i);
  const u64 end = warp_scan(mine);
  u64 before = end - mine;
  if (!(before < target && target <= end)) return;
  int bin = top;
  for (; before + in_bin(bin) < target; --bin) before += in_bin(bin);
  s.found_bin = bin;
  s.found = before;
}

struct Descent {
  u32 key;    // of the token at which the target is reached
  u64 above;  // mass (or number) of the tokens that weigh more
};

// Walks down from the largest weight until the sum of masses (or counts) reaches `target`, looking only at weights
// of `lowest` and more. The target must be reached.
template <bool kByMass>
TESSERA_DEVICE Descent descend(const RowView& row, RowScratch& s, u64 target, u32 lowest) {
  Descent d = {0, 0};
  u32 known = 0;  // bits of the key found so far
#pragma unroll
  for (int level = 0; level < 3; ++level) {
    const int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
    const u32 bins = level == 2 ? 1024 : kBins;
    for (int i = threadIdx.x; i < kBins; i += kSampleThreads) s.low[i] = 0, s.high[i] = 0;
    __syncthreads();
    row.each_key([&](int, u32 key) {
      if (key < lowest || (key & known) != d.key) return;
      const u32 bin = (key >> shift) & (bins - 1);
      const u64 amount = kByMass ? mass_of(key) : 1;
      const u32 low = static_cast<u32>(amount);
      const u32 high = static_cast<u32>(amount >> 32) + (atomicAdd(&s.low[bin], low) > ~low);
      if (high) atomicAdd(&s.high[bin], high);
    });
    __syncthreads();
    if (threadIdx.x < kWarp) find_bin(s, target);
    __syncthreads();
    target -= s.found;
    d.above += s.found;
    d.key |= s.found_bin << shift;
    known |= (bins - 1) << shift;
    __syncthreads();
  }
  return d;
}

TESSERA_DEVICE u64 kept_mass(const RowView& row, RowScratch& s, Threshold keep) {
  u64 mass = 0;
  row.each_key([&](int, u32 key) { mass += key > keep.key ? mass_of(key) : 0; });
  return block_reduce<kSampleThreads>(mass, Sum{}, s.warp_mass) + keep.ties * mass_of(keep.key);
}

TESSERA_DEVICE Threshold keep_top_k(const RowView& row, RowScratch& s, u32 k) {
  const Descent d = descend<false>(row, s, k, 0);
  return {d.key, k - static_cast<u32>(d.above)};
}

// The fewest of the kept tokens, largest first, whose mass reaches top_p of theirs.
TESSERA_DEVICE Threshold keep_top_p(const RowView& row, RowScratch& s, Threshold kept, double top_p) {
  const u64 ties_mass = kept.ties * mass_of(kept.key);
  const u64 total = kept_mass(row, s, kept);
  const u64 target = min(max(static_cast<u64>(ceil(top_p * static_cast<double>(total))), 1ull), total);
  const u64 above = total - ties_mass;
  if (target > above) {  // some of those at the threshold are needed
    const u64 each = mass_of(kept.key);
    return {kept.key, static_cast<u32>((target - above + each - 1) / each)};
  }
  const Descent d = descend<true>(row, s, target, kept.key + 1);
  const u64 each = mass_of(d.key);
  return {d.key, static_cast<u32>((target - d.above + each - 1) / each)};
}

// What lies before a range of ids: kept mass, and tokens that weigh exactly the threshold.
struct Before {
  u64 mass;
  u32 ties;
};

// Narrows [begin, end) to the 32nd part of it that holds the token at which the kept mass exceeds the target,
// which is u * total where the range is the whole row. Every thread returns the same.
TESSERA_DEVICE void narrow(const RowView& row, RowScratch& s, Threshold keep, double u, u64* target, int* begin,
                           int* end, Before* before) {
  const int warp = threadIdx.x / kWarp, lane = lane_id();
  const int part = div_up(*end - *begin, kSampleWarps);
  const int from = min(*begin + warp * part, *end);
  u64 above = 0;
  u32 ties = 0;
  row.each_logit(from, min(from + part, *end), lane, kWarp, [&](int, float x) {
    const u32 key = row.key(x);
    above += key > keep.key ? mass_of(key) : 0;
    ties += key == keep.key;
  });
  above = warp_reduce(above, Sum{});
  ties = warp_reduce(ties, Sum{});
  __syncthreads();
  if (lane == 0) s.warp_mass[warp] = above, s.warp_count[warp] = ties;
  __syncthreads();
  const u32 ties_end = before->ties + warp_scan(s.warp_count[lane]), ties_begin = ties_end - s.warp_count[lane];
  const u64 mine = s.warp_mass[lane] + (min(ties_end, keep.ties) - min(ties_begin, keep.ties)) * mass_of(keep.key);
  const u64 mass_end = before->mass + warp_scan(mine);
  const u64 total = __shfl_sync(0xffffffffu, mass_end, kWarp - 1);
  if (*begin == 0 && *end == row.vocab) *target = static_cast<u64>(u * static_cast<double>(total));
  const int chosen = __ffs(__ballot_sync(0xffffffffu, mass_end > *target)) - 1;
  before->mass = __shfl_sync(0xffffffffu, mass_end - mine, chosen);
  before->ties = __shfl_sync(0xffffffffu, ties_begin, chosen);
  *begin += chosen * part;
  *end = min(*begin + part, *end);
}

// The first id whose cumulative kept mass exceeds u * total. One warp finds it in the end.
TESSERA_DEVICE void draw(const RowView& row, RowScratch& s, Threshold keep, double u) {
  int begin = 0, end = row.vocab;
  u64 target = 0;
  Before before = {0, 0};
  do narrow(row, s, keep, u, &target, &begin, &end, &before);
  while (end - begin > 4 * kWarp);
  if (threadIdx.x >= kWarp) return;
  for (int first = begin; first < end; first += kWarp) {
    const int i = first + lane_id();
    const u32 key = i < end ? row.key(row.logits[i]) : 0;
    const bool tie = i < end && key == keep.key;
    const u32 rank = before.ties + warp_scan(static_cast<u32>(tie));
    const u64 mass = i < end && (key > keep.key || (tie && rank <= keep.ties)) ? mass_of(key) : 0;
    const u64 reached = before.mass + warp_scan(mass);
    const u32 hit = __ballot_sync(0xffffffffu, reached > target);
    if (hit) {
      if (lane_id() == __ffs(hit) - 1) s.token = i;
      return;
    }
    before.mass = __shfl_sync(0xffffffffu, reached, kWarp - 1);
    before.ties = __shfl_sync(0xffffffffu, rank, kWarp - 1);
  }
}

// logits [rows, vocab], draws [rows] -> tokens [rows]: -1 where the largest logit is NaN or infinite. Grid: rows.
__global__ void __launch_bounds__(kSampleThreads, 1)
    sample_rows(const float* logits, const SampleRow* draws, i64* tokens, int vocab) {
  __shared__ RowScratch s;
  await_predecessor();
  RowView row = {logits + static_cast<i64>(blockIdx.x) * vocab, vocab, 0, 0};
  const SampleRow params = draws[blockIdx.x];
  u32 best_key;
  const int best = find_best(row, s, &best_key);
  row.best = row.logits[best];
  if (!(fabsf(row.best) < __int_as_float(0x7f800000)) || params.temperature == 0) {
    const bool finite = fabsf(row.best) < __int_as_float(0x7f800000);
    if (threadIdx.x == 0) tokens[blockIdx.x] = finite ? best : kNotFinite;
    return;
  }
  row.temperature = fmaxf(static_cast<float>(params.temperature), 0x1p-126f);  // 0 / 0 would weigh the best token
  Threshold keep = {0, 0};
  if (params.top_k > 0 && params.top_k < vocab) keep = keep_top_k(row, s, static_cast<u32>(params.top_k));
  if (params.top_p < 1) keep = keep_top_p(row, s, keep, params.top_p);
  __syncthreads();
  draw(row, s, keep, params.u);
  __syncthreads();
  if (threadIdx.x == 0) tokens[blockIdx.x] = s.token;
}

}  // namespace tessera
