#include "export.h"
#include "linear_float.h"
#include "linear_int_run.h"

using namespace tessera;

EXPORT void tessera_set_threads(int64_t count) { Pool::instance().set_threads(static_cast<int>(count)); }

EXPORT void tessera_int_linear(const IntLinear* w, const int8_t* codes, const float* scale, const int32_t* row_sum,
                               int64_t rows, float* y) {
  run_int_linear(*w, codes, scale, row_sum, rows, y);
}

EXPORT void tessera_float_linear(const FloatLinear* w, const float* x, int64_t rows, float* y) {
  run_float_linear(*w, x, rows, y);
}
