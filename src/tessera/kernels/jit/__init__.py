"""Run-time compilation: one artifact cache, one compiler driver per target (g++, NVRTC)."""
