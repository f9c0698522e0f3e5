"""The compiled CPU kernels of one architecture as callable functions.

Every function is there twice. `short` keeps Python's global lock: calls of a decode step take microseconds,
and giving the lock up 270 times per token would let other threads take it for 5 ms each time. `long`, for
many rows, releases it.
"""

import ctypes
import logging
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tessera.kernels.jit.cache import ArtifactCache
from tessera.kernels.jit.cpu import build_shared, find_compiler
from tessera.kernels.jit.errors import CppCompileError, LibraryUnavailableError, NoCompilerError

log = logging.getLogger(__name__)

CSRC: Final = Path(__file__).parent.parent / "csrc" / "cpu"
SOURCES: Final = tuple(CSRC / name for name in ("attention.cpp", "linear.cpp", "rows.cpp"))
LONG_ROWS: Final = 17
"""Calls with at least this many rows release the global lock."""

_AVX2: Final = ("-mavx2", "-mfma", "-mf16c")
_AVX512: Final = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "avx512vnni": ("-DTESSERA_AVX512VNNI", *_AVX512, "-mavx512vnni"),
    "avx512": ("-DTESSERA_AVX512", *_AVX512),
    "avx2": ("-DTESSERA_AVX2", *_AVX2),
    "portable": (),
}

_P, _I = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "int_linear": (_P, _P, _P, _P, _I, _P),
    "float_linear": (_P, _P, _I, _P),
    "norm": (_P, _P, _P, _I, _P, _P, _P, _P, _P),
    "silu_mul": (_P, _I, _I, _P, _P, _P, _P),
    "quantize_rows": (_P, _I, _I, _P, _P, _P),
    "embedding": (_P, _P, _I, _I, _P),
    "attention": (_P, _P, _P, _P, _I, _P),
}


class Functions:
    """The entry points of csrc/cpu/*.cpp; see there for their arguments."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"tessera_{name}")
            function.argtypes = arguments
            function.restype = ctypes.c_int if name in ("embedding", "attention") else None
            setattr(self, name, function)

    int_linear: Any
    float_linear: Any
    norm: Any
    silu_mul: Any
    quantize_rows: Any
    embedding: Any
    attention: Any


@dataclass(frozen=True, slots=True)
class Library:
    short: Functions
    long: Functions
    set_threads: Any


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there are no compiled kernels; kernels repeat it as the reason why they cannot run."""

    reason: str


def default_threads() -> int:
    """`TESSERA_THREADS`, else the processors this process may run on."""
    explicit = os.environ.get("TESSERA_THREADS")
    return max(1, int(explicit)) if explicit else len(os.sched_getaffinity(0))


@cache
def load(arch: str) -> Library | Unavailable:
    """Compiles (or finds in the cache) and loads the kernels for `arch`; says once why it cannot."""
    start = time.perf_counter()
    try:
        path = build_shared(SOURCES, FLAGS[arch], find_compiler(), ArtifactCache())
        library = ctypes.CDLL(str(path))
    except (NoCompilerError, CppCompileError, OSError) as error:
        log.warning(
            "no compiled CPU kernels (%s): using torch, about 5 times slower in prefill and 20 in decode; "
            "install g++ or set CXX",
            error,
        )
        return Unavailable(str(error))
    log.info("CPU kernels for %s ready in %.1f s: %s", arch, time.perf_counter() - start, path)
    holding = ctypes.PyDLL(str(path), handle=library._handle)
    set_threads = library.tessera_set_threads
    set_threads.argtypes, set_threads.restype = (_I,), None
    set_threads(default_threads())
    return Library(Functions(holding), Functions(library), set_threads)


def require(arch: str) -> Library:
    """The library of a kernel that was selected. Raises LibraryUnavailableError with the reason."""
    library = load(arch)
    if isinstance(library, Unavailable):
        raise LibraryUnavailableError(f"compiled CPU kernels are not available: {library.reason}")
    return library
