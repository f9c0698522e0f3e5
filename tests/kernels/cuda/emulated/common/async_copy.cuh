#pragma once
#include "common/mbarrier.cuh"

namespace tessera {

inline void cp_async(u32 shared, const void* global, u32 = 16) { memcpy(emulated::shared + shared, global, 16); }
inline void cp_async_arrive(u32 barrier) { mbarrier_arrive(barrier); }

}  // namespace tessera
