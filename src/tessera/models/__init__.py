"""Model families, one file each, and the loader that binds them to kernels."""
