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

// Of row-major 16-bit [rows, columns] in boxes of `box` rows by 64 columns.
struct TensorMap {
  const u16* memory;
  int rows, columns, box;
};
inline void tensor_prefetch(const TensorMap&) {}
inline void tensor_load(u32 shared, const TensorMap& map, int column, int row, u32 barrier) {
  if (shared % 1024) fprintf(stderr, "a swizzled box at %u\n", shared), abort();
  for (int r = 0; r < map.box; ++r) {
    for (int c = 0; c < 64; ++c) {
      const bool inside = row + r < map.rows && column + c < map.columns;
      const u16 x = inside ? map.memory[static_cast<i64>(row + r) * map.columns + column + c] : 0;
      memcpy(emulated::shared + shared + r * 128 + (c / 8 ^ r % 8) * 16 + c % 8 * 2, &x, 2);
    }
  }
  count(barrier, 0, -map.box * 128);
}
// What of the box lies in the matrix.
inline void tensor_store(const TensorMap& map, int column, int row, u32 shared) {
  if (shared % 1024) fprintf(stderr, "a swizzled box at %u\n", shared), abort();
  for (int r = 0; r < map.box && row + r < map.rows; ++r) {
    for (int c = 0; c < 64 && column + c < map.columns; ++c) {
      u16* to = const_cast<u16*>(map.memory) + static_cast<i64>(row + r) * map.columns + column + c;
      memcpy(to, emulated::shared + shared + r * 128 + (c / 8 ^ r % 8) * 16 + c % 8 * 2, 2);
    }
  }
}
inline void bulk_commit() {}
template <int>
void bulk_wait_read() {}
template <int>
void bulk_wait() {}
inline void fence_async() {}

}  // namespace tessera
