"""C++ sources -> one shared object, with the system's compiler, through the artifact cache."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.kernels.jit.cache import ArtifactCache, closure, digest
from tessera.kernels.jit.errors import CppCompileError, NoCompilerError

CANDIDATES: Final = ("c++", "g++", "clang++")
BASE_FLAGS: Final = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    # A product and a sum are fused only where the source says so: results are part of the contract.
    "-ffp-contract=off",
)
TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Compiler:
    """`version` is everything it prints about itself: part of the cache key."""

    path: str
    version: str


def find_compiler() -> Compiler:
    """The compiler `CXX` names, else the first of c++, g++, clang++ on PATH.

    Raises NoCompilerError, also where TESSERA_NO_COMPILER=1 hides it.
    """
    if os.environ.get("TESSERA_NO_COMPILER") == "1":
        raise NoCompilerError("TESSERA_NO_COMPILER=1 hides the C++ compiler")
    explicit = os.environ.get("CXX")
    names = (explicit,) if explicit else CANDIDATES
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        raise NoCompilerError(f"no C++ compiler ({', '.join(names)}) on PATH")
    try:
        answer = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCompilerError(f"{path} -v failed: {error}") from error
    return Compiler(path, answer.stderr)


def build_shared(source: Path, flags: Sequence[str], compiler: Compiler, cache: ArtifactCache) -> Path:
    """Path of `source`, with the headers beside it, as a shared object. Raises CppCompileError."""
    contents = source.read_bytes()
    headers = closure(contents, [source.parent])
    options = (*BASE_FLAGS, *flags)
    parts = [contents, *(p for name, text in headers.items() for p in (name, text))]
    key = digest("cpu", compiler.path, compiler.version, *options, *parts)

    def compile_to(path: Path) -> None:
        command = [compiler.path, *options, "-o", str(path), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise CppCompileError(f"{compiler.path} could not run: {error}") from error
        if done.returncode:
            tail = "\n".join(done.stderr.splitlines()[-20:])
            raise CppCompileError(f"{' '.join(command)} failed with status {done.returncode}:\n{tail}")

    return cache.get_or_build(key, "kernels.so", compile_to, note=f"{source.name} {' '.join(flags)}")
