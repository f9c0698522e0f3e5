#include "rows.h"

#include "export.h"

using namespace tessera;

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
