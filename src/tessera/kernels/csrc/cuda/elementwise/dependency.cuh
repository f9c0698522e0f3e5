// How every kernel here takes part in programmatic dependent launches.
#pragma once
#include "common/sync.cuh"

namespace tessera {

// Called before anything is read that the grid before writes, or written that it reads or writes, and at the latest
// before the block ends: a grid has then ended only after all its predecessors, so waiting for the last one is enough.
// The next grid may start from here on, and waits here itself. So when a grid starts, all before its predecessor have
// ended: what they wrote may be read without waiting. Below sm_90 launches follow one another as they always did.
TESSERA_DEVICE void await_predecessor() {
#if __CUDA_ARCH__ >= 900
  grid_dependency_wait();
  grid_launch_dependents();
#endif
}

}  // namespace tessera
