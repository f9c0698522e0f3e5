// How every kernel here takes part in programmatic dependent launches.
#pragma once
#include "common/sync.cuh"

namespace tessera {

// Every thread calls this before it first reads or writes anything that another kernel writes, and no thread ends
// before it: a grid has then ended only after all its predecessors, so waiting for the last one is enough. The next
// grid may be set up from here on; it waits here itself. Below sm_90 launches follow one another as they always did.
TESSERA_DEVICE void await_predecessor() {
#if __CUDA_ARCH__ >= 900
  grid_dependency_wait();
  grid_launch_dependents();
#endif
}

}  // namespace tessera
