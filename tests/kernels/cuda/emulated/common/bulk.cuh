#pragma once
#include "common/mbarrier.cuh"

namespace tessera {

inline u64 policy_evict_first() { return 0; }
inline void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier, u64 = 0) {
  if (bytes % 16 || shared % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    fprintf(stderr, "a bulk copy of %u bytes to %u is not of 16 bytes\n", bytes, shared), abort();
  memcpy(emulated::shared + shared, global, bytes);
  count(barrier, 0, -static_cast<int>(bytes));
}

}  // namespace tessera
