"""CUDA kernels: run-time compilation, launching, reading machine code back. Importing it touches no GPU."""
