"""Failures of run-time compilation: of the cache for every device, of the compiler on the CPU."""

from tessera.errors import TesseraError


class KernelCacheError(TesseraError):
    """There is no directory at all that compiled kernels could be written to."""


class NoCompilerError(TesseraError):
    """There is no C++ compiler to call."""


class CppCompileError(TesseraError):
    """The C++ compiler failed; the message ends with what it said."""


class LibraryUnavailableError(TesseraError):
    """A compiled kernel was bound although its library could not be built; the message says why."""
