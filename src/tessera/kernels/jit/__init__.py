"""Run-time compilation: one artifact cache, one compiler driver per target (g++ for the CPU, NVRTC for CUDA)."""
