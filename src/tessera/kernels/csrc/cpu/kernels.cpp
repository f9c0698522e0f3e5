// Entry points of the CPU kernels. Shapes, types and layouts were checked by the callers in kernels/cpu/*.py;
// what only the data tells (ids, pages) is checked here and reported as a non-zero status.
#include "attention.h"
#include "linear_float.h"
#include "linear_int_run.h"
#include "rows.h"

using namespace tessera;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void tessera_set_threads(int64_t count) { Pool::instance().set_threads(static_cast<int>(count)); }

EXPORT void tessera_int_linear(const IntLinear* w, const int8_t* codes, const float* scale, const int32_t* row_sum,
                               int64_t rows, float* y) {
  run_int_linear(*w, codes, scale, row_sum, rows, y);
}

EXPORT void tessera_float_linear(const FloatLinear* w, const float* x, int64_t rows, float* y) {
  run_float_linear(*w, x, rows, y);
}

EXPORT void tessera_norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows,
                         int64_t width, float* total, float* y, int8_t* codes, float* scale, int32_t* row_sum) {
  run_norm(x, residual, weight, eps, rows, width, total, y, {codes, scale, row_sum});
}

EXPORT void tessera_silu_mul(const float* gate_up, int64_t rows, int64_t width, float* y, int8_t* codes, float* scale,
                             int32_t* row_sum) {
  run_silu_mul(gate_up, rows, width, y, {codes, scale, row_sum});
}

EXPORT void tessera_quantize_rows(const float* x, int64_t rows, int64_t width, int8_t* codes, float* scale,
                                  int32_t* row_sum) {
  run_quantize_rows(x, rows, width, {codes, scale, row_sum});
}

EXPORT int tessera_embedding(const FloatLinear* table, const void* ids, int64_t id_bytes, int64_t rows, float* y) {
  const bool ok = id_bytes == 8 ? run_embedding(*table, static_cast<const int64_t*>(ids), rows, y)
                                : run_embedding(*table, static_cast<const int32_t*>(ids), rows, y);
  return ok ? 0 : 1;
}

EXPORT int tessera_attention(const Attention* attention, const Step* step) { return run_attention(*attention, *step); }
