// Token ids of a step, some of which only the device knows yet.
#pragma once
#include "common/base.cuh"
#include "elementwise/dependency.cuh"

namespace tessera {

// ids [n]: a token, or -1 - row for what the last step drew in that row of `drawn` -> tokens [n].
// A row that drew nothing finite gives token 0: its request ends before the result is looked at.
__global__ void resolve_tokens(const i64* ids, const i64* drawn, i64* tokens, int n) {
  await_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const i64 id = ids[i];
  const i64 token = id < 0 ? drawn[-1 - id] : id;
  tokens[i] = token < 0 ? 0 : token;
}

}  // namespace tessera
