"""C++ sources -> one shared object, with the system's compiler, through the artifact cache."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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


def build_shared(
    sources: Sequence[Path], flags: Sequence[str], compiler: Compiler, cache: ArtifactCache
) -> Path:
    """Path of `sources`, with the headers beside them, as one shared object. Raises CppCompileError."""
    parts: list[str | bytes] = ["cpu", compiler.path, compiler.version, *BASE_FLAGS, *flags]
    for source in sources:
        contents = source.read_bytes()
        headers = closure(contents, [source.parent])
        parts += [source.name, contents, *(part for header in headers.items() for part in header)]
    names = " ".join(source.name for source in sources)

    def build(path: Path) -> None:
        commands = [
            [
                compiler.path,
                *BASE_FLAGS,
                *flags,
                "-c",
                str(source),
                "-o",
                str(path.with_name(f"{source.stem}.o")),
            ]
            for source in sources
        ]
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(_run, commands))
        objects = [command[-1] for command in commands]
        _run([compiler.path, "-shared", "-pthread", *objects, "-o", str(path)])
        for name in objects:
            Path(name).unlink()

    return cache.get_or_build(digest(*parts), "kernels.so", build, note=f"{names} {' '.join(flags)}")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise CppCompileError(f"{command[0]} could not run: {error}") from error
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-20:])
        raise CppCompileError(f"{' '.join(command)} failed with status {done.returncode}:\n{tail}")
