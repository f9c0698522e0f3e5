// Entry points: plain C functions over pointers and sizes. Shapes, types and layouts were checked by the
// callers in kernels/cpu/*.py; what only the data tells (ids, pages) is checked here and reported as a
// non-zero status.
#pragma once

#define EXPORT extern "C" __attribute__((visibility("default")))
