#pragma once
#include "common/mbarrier.cuh"

namespace tessera {

inline void cp_async(u32 shared, const void* global, u32 bytes = 16) {
  memset(emulated::shared + shared, 0, 16);
  memcpy(emulated::shared + shared, global, bytes);
}
inline void cp_async_arrive(u32 barrier) { mbarrier_arrive(barrier); }

}  // namespace tessera
