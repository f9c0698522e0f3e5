// Row-wise ops: int8 quantization, RMSNorm, SiLU times gate, embedding look-up. A row never depends on others.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "linear_float.h"
#include "pool.h"
#include "simd.h"

namespace tessera {

struct Norm {  // mirrored by `NormDescriptor` in kernels/cpu/rows.py
  const float* weight;
  int64_t width;
  float eps;
};

struct QuantizedRows {  // outputs; null `codes` where floats are wanted
  int8_t* codes;
  float* scale;
  int32_t* row_sum;
};

// full(i) for every whole vector of a row, then tail(i, count) for the elements left over.
template <class Full, class Tail>
inline void each_vector(int64_t width, const Full& full, const Tail& tail) {
  int64_t i = 0;
  for (; i + simd::W <= width; i += simd::W) full(i);
  if (i < width) tail(i, width - i);
}

inline simd::F load_part(const float* p, int64_t count) {
  float lanes[simd::W] = {};
  memcpy(lanes, p, count * sizeof(float));
  return simd::load(lanes);
}

inline void store_part(float* p, simd::F x, int64_t count) {
  float lanes[simd::W];
  simd::store(lanes, x);
  memcpy(p, lanes, count * sizeof(float));
}

// scale = max|x| / 127, codes = round_half_even(x * (1 / scale)); tiny rows get scale 1, non-finite rows a
// non-finite scale, both codes 0. Bit for bit what numerics.quantize_rows does.
inline void quantize_row(const float* x, int64_t width, QuantizedRows out, int64_t row) {
  using namespace simd;
  I largest_bits = set_int(0);  // as integers: their order is that of magnitudes, and NaN comes out on top
  const I magnitude = set_int(0x7fffffff);
  each_vector(
      width, [&](int64_t i) { largest_bits = max_int(largest_bits, and_int(bits(load(x + i)), magnitude)); },
      [&](int64_t i, int64_t n) {
        largest_bits = max_int(largest_bits, and_int(bits(load_part(x + i, n)), magnitude));
      });
  const int32_t top = largest_int(largest_bits);
  float scale;
  memcpy(&scale, &top, sizeof scale);
  scale /= 127.0f;
  int8_t* codes = out.codes + row * width;
  if (scale < 0x1p-126f || !std::isfinite(scale)) {
    out.scale[row] = scale < 0x1p-126f ? 1.0f : scale;
    out.row_sum[row] = 0;
    memset(codes, 0, width);
    return;
  }
  const F inverse = set(1.0f / scale);
  I total = set_int(0);
  each_vector(
      width,
      [&](int64_t i) {
        const I code = round_to_int(load(x + i) * inverse);
        total = add_int(total, code);
        store_int8(codes + i, code);
      },
      [&](int64_t i, int64_t n) {
        const I code = round_to_int(load_part(x + i, n) * inverse);
        total = add_int(total, code);
        int8_t lanes[W];
        store_int8(lanes, code);
        memcpy(codes + i, lanes, n);
      });
  out.scale[row] = scale;
  out.row_sum[row] = sum_int(total);
}

// Rows in chunks worth handing to a thread; a decode step's few rows stay on the calling thread.
template <class F>
void each_row(int64_t rows, int64_t width, const F& body) {
  const int64_t per_chunk = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  parallel_for((rows + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    for (int64_t r = chunk * per_chunk; r < std::min((chunk + 1) * per_chunk, rows); ++r) body(r);
  });
}

// total = x + residual (null: x itself, `total` not written); y = total / sqrt(mean(total^2) + eps) * weight.
inline void norm_row(const float* x, const float* residual, const float* weight, float eps, int64_t width,
                     float* total, float* y) {
  using namespace simd;
  F squares[4] = {set(0), set(0), set(0), set(0)};
  const float* in = residual ? total : x;
  if (residual) {
    each_vector(
        width, [&](int64_t i) { store(total + i, load(x + i) + load(residual + i)); },
        [&](int64_t i, int64_t n) {
          store_part(total + i, load_part(x + i, n) + load_part(residual + i, n), n);
        });
  }
  each_vector(
      width,
      [&](int64_t i) {
        const F v = load(in + i);
        squares[i / W % 4] = fma(v, v, squares[i / W % 4]);
      },
      [&](int64_t i, int64_t n) {
        const F v = load_part(in + i, n);
        squares[0] = fma(v, v, squares[0]);
      });
  const float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / width;
  const F factor = set(1.0f / std::sqrt(mean + eps));
  each_vector(
      width, [&](int64_t i) { store(y + i, load(in + i) * factor * load(weight + i)); },
      [&](int64_t i, int64_t n) { store_part(y + i, load_part(in + i, n) * factor * load_part(weight + i, n), n); });
}

inline void run_norm(const Norm& norm, const float* x, const float* residual, int64_t rows, float* total, float* y,
                     QuantizedRows out) {
  const int64_t width = norm.width;
  each_row(rows, width, [&](int64_t r) {
    const int64_t at = r * width;
    float* row = out.codes ? scratch<3, float>(width) : y + at;
    norm_row(x + at, residual ? residual + at : nullptr, norm.weight, norm.eps, width, total + at, row);
    if (out.codes) quantize_row(row, width, out, r);
  });
}

inline simd::F silu_mul(simd::F gate, simd::F up) {
  using namespace simd;
  return gate / (set(1.0f) + exp(set(0.0f) - gate)) * up;
}

inline void run_silu_mul(const float* gate_up, int64_t rows, int64_t width, float* y, QuantizedRows out) {
  each_row(rows, width, [&](int64_t r) {
    const float *gate = gate_up + r * 2 * width, *up = gate + width;
    float* row = out.codes ? scratch<3, float>(width) : y + r * width;
    each_vector(
        width, [&](int64_t i) { simd::store(row + i, silu_mul(simd::load(gate + i), simd::load(up + i))); },
        [&](int64_t i, int64_t n) {
          store_part(row + i, silu_mul(load_part(gate + i, n), load_part(up + i, n)), n);
        });
    if (out.codes) quantize_row(row, width, out, r);
  });
}

inline void run_quantize_rows(const float* x, int64_t rows, int64_t width, QuantizedRows out) {
  each_row(rows, width, [&](int64_t r) { quantize_row(x + r * width, width, out, r); });
}

// Rows of a table packed as a linear layer's weights. False where an id is not a row.
template <class Id>
bool run_embedding(const FloatLinear& table, const Id* ids, int64_t rows, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    if (ids[r] < 0 || ids[r] >= table.n) return false;
  }
  each_row(rows, table.k, [&](int64_t r) {
    const int64_t id = ids[r], block = id / kLanes, lane = id % kLanes;
    float* out = y + r * table.k;
    for (int64_t k = 0; k < table.k; ++k) {
      const int64_t plain = (block * table.k + k) * kLanes + lane;
      switch (table.kind) {
        case kS8: {
          const auto* bytes = static_cast<const uint8_t*>(table.codes) + block * table.k_padded * kLanes;
          out[k] = (bytes[k / 4 * 64 + lane * 4 + k % 4] - 128) * table.scale[id];
          break;
        }
        case kF32: out[k] = static_cast<const float*>(table.codes)[plain]; break;
        default: {
          const uint16_t* half = static_cast<const uint16_t*>(table.codes) + plain;
          uint16_t lanes[simd::W] = {*half};
          float wide[simd::W];
          simd::store(wide, table.kind == kF16 ? simd::load_f16(lanes) : simd::load_bf16(lanes));
          out[k] = wide[0];
        }
      }
    }
  });
  return true;
}

}  // namespace tessera
