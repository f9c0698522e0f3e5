#pragma once
#include "common/base.cuh"

namespace tessera {

inline void grid_dependency_wait() {}
inline void grid_launch_dependents() {}
inline std::barrier<>& named_barrier(int id, int threads) {
  std::lock_guard lock(emulated::mutex);
  auto& barrier = emulated::named[id];
  if (!barrier) barrier = std::make_unique<std::barrier<>>(threads);
  return *barrier;
}
inline void named_barrier_sync(int id, int threads) { named_barrier(id, threads).arrive_and_wait(); }
inline void named_barrier_arrive(int id, int threads) { static_cast<void>(named_barrier(id, threads).arrive()); }

template <int>
void registers_grow() {}
template <int>
void registers_shrink() {}

}  // namespace tessera
