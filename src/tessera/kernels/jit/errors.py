"""Failures of run-time compilation: of the cache for every device, of the compiler on the CPU."""

from tessera.errors import TesseraError


class KernelCacheError(TesseraError):
    """Compiled kernels cannot be written: no directory takes them, or its disk is full."""


class NoCompilerError(TesseraError):
    """There is no C++ compiler to call."""


class CppCompileError(TesseraError):
    """The C++ compiler failed; the message ends with what it said."""


class LibraryUnavailableError(TesseraError):
    """A compiled kernel was bound although its library could not be built; the message says why."""
