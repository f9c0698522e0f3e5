// 8x8 matrices of 16-bit elements between shared memory and mma fragments.
// A row is 16 bytes; in a fragment lane l holds elements (l / 4, 2 (l % 4)) and the next one of each matrix.
#pragma once
#include "common/base.cuh"

namespace tessera {

// ldmatrix.sync.aligned.m8n8.x{1,2,4}.shared.b16, sm_75: lane 8 i + r gives the address of row r of matrix i.
TESSERA_DEVICE void ldmatrix(u32 (&d)[1], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(d[0]) : "r"(row) : "memory");
}
TESSERA_DEVICE void ldmatrix(u32 (&d)[2], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1]) : "r"(row) : "memory");
}
TESSERA_DEVICE void ldmatrix(u32 (&d)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(row) : "memory");
}
// The same, each matrix transposed on the way.
TESSERA_DEVICE void ldmatrix_trans(u32 (&d)[2], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1]) : "r"(row) : "memory");
}
TESSERA_DEVICE void ldmatrix_trans(u32 (&d)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(row) : "memory");
}

// stmatrix.sync.aligned.m8n8.x{2,4}[.trans].shared.b16, sm_90: addresses as for ldmatrix.
TESSERA_DEVICE void stmatrix(u32 row, const u32 (&s)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
               :: "r"(row), "r"(s[0]), "r"(s[1]) : "memory");
}
TESSERA_DEVICE void stmatrix(u32 row, const u32 (&s)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(row), "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]) : "memory");
}
TESSERA_DEVICE void stmatrix_trans(u32 row, const u32 (&s)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               :: "r"(row), "r"(s[0]), "r"(s[1]) : "memory");
}
TESSERA_DEVICE void stmatrix_trans(u32 row, const u32 (&s)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(row), "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]) : "memory");
}

// movmatrix.sync.aligned.m8n8.trans.b16, sm_75: transposes one matrix that lies across a warp's registers.
TESSERA_DEVICE u32 movmatrix_trans(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace tessera
