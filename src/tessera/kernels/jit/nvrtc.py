"""CUDA templates to cubins with NVRTC, from pip wheels alone: no toolkit, no GPU and no driver are needed.

The source handed to NVRTC only instantiates a template (`#include "x.cuh"` and one name expression); the
headers travel in memory, so what is compiled is exactly what the cache key was computed from. A `__global__`
that is not a template is compiled along with every instance of its header: make it a template.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tessera.kernels.cuda.errors import (
    CompileError,
    LocalMemoryError,
    NvrtcMissingError,
    WgmmaSerializedError,
)
from tessera.kernels.jit.cache import ArtifactCache, closure, digest

CSRC = Path(__file__).parents[1] / "csrc" / "cuda"
ARTIFACT = "kernel.cubin"
_OPTIONS = ("--std=c++20", "--device-as-default-execution-space", "--no-cache", "--ptxas-options=-v")


@dataclass(frozen=True)
class Instantiation:
    """One `__global__` template instance to compile.

    `header` is relative to `csrc/cuda`; `expression` is a C++ name expression such as
    `tessera::rms_norm<tessera::bf16, 1024>`; `arch` is `sm_80`, `sm_90a`, ...; `options` go to NVRTC as
    they are; a kernel that needs more than `allowed_local_bytes` of local memory a thread is refused.
    """

    header: str
    expression: str
    arch: str
    options: tuple[str, ...] = ()
    allowed_local_bytes: int = 0

    @property
    def source(self) -> str:
        return f'#include "{self.header}"\n'


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one instance: `name` is the mangled entry point, `local_bytes` are per thread."""

    name: str
    arch: str
    registers: int
    local_bytes: int
    spill_bytes: int
    cubin: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """A line of JSON, then the cubin: one cache artifact."""
        facts = {k: v for k, v in asdict(self).items() if k != "cubin"}
        return json.dumps(facts).encode() + b"\n" + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes) -> "CompiledKernel":
        facts, cubin = data.split(b"\n", 1)
        return cls(**json.loads(facts), cubin=cubin)


@cache
def _nvrtc() -> Any:
    """The `cuda.bindings.nvrtc` module with its library loaded. Raises NvrtcMissingError."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        import torch

        command = install_command(torch.version.cuda)
        raise NvrtcMissingError(f"NVRTC cannot be loaded ({error}): {command}") from error
    return nvrtc


def install_command(torch_cuda: str | None) -> str:
    """What installs the NVRTC of the CUDA that torch was built for; where that has none, of the newest."""
    if torch_cuda is None:
        return 'pip install "cuda-bindings>=13" "nvidia-cuda-nvrtc>=13"'
    major = torch_cuda.split(".")[0]
    wheel = "nvidia-cuda-nvrtc-cu12" if major == "12" else "nvidia-cuda-nvrtc"
    return f'pip install "cuda-bindings=={major}.*" "{wheel}=={major}.*"'


@cache
def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the NVRTC in use. Raises NvrtcMissingError."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


@cache
def _compiler_id() -> str:
    """NVRTC reports no patch level, and patches change code: the wheel's version is part of the key."""
    major, minor = nvrtc_version()
    for wheel in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        try:
            return f"nvrtc {major}.{minor} {metadata.version(wheel)}"
        except metadata.PackageNotFoundError:
            continue
    return f"nvrtc {major}.{minor}"


def compile_kernel(inst: Instantiation, cache_: ArtifactCache | None = None) -> CompiledKernel:
    """Compiles one instance, or reads it back from the cache.

    Raises NvrtcMissingError, CompileError, WgmmaSerializedError, LocalMemoryError.
    """
    store = cache_ or ArtifactCache()
    headers = closure(inst.source.encode(), [CSRC])
    parts: list[str | bytes] = [
        inst.source,
        inst.expression,
        inst.arch,
        *_OPTIONS,
        *inst.options,
        _compiler_id(),
        *(fact.name for fact in fields(CompiledKernel)),  # what `from_bytes` reads back
    ]
    for name, text in headers.items():
        parts += [name, text]
    key = digest(*parts)

    def build(path: Path) -> None:
        path.write_bytes(_compile(inst, headers, store.root / "failures" / f"{key}.log").to_bytes())

    path = store.get_or_build(key, ARTIFACT, build, note=f"{inst.expression} {inst.arch}")
    compiled = CompiledKernel.from_bytes(path.read_bytes())
    if compiled.local_bytes > inst.allowed_local_bytes:
        raise LocalMemoryError(
            f"{inst.expression} for {inst.arch} uses {compiled.local_bytes} bytes of local memory a thread "
            f"({compiled.spill_bytes} of them spills, {compiled.registers} registers), "
            f"{inst.allowed_local_bytes} are allowed: use a smaller tile, index register arrays with "
            "constants only, or pass allowed_local_bytes"
        )
    return compiled


def compile_many(
    insts: Iterable[Instantiation], cache_: ArtifactCache | None = None, threads: int | None = None
) -> list[CompiledKernel]:
    """Compiles instances in parallel, in the order given, and raises the first failure.

    Threads are enough: NVRTC 13.0 runs concurrently and the bindings release the interpreter lock.
    """
    store = cache_ or ArtifactCache()
    todo = list(insts)
    with ThreadPoolExecutor(min(threads or os.cpu_count() or 1, len(todo)) or 1) as pool:
        return list(pool.map(lambda inst: compile_kernel(inst, store), todo))


def _compile(inst: Instantiation, headers: dict[str, bytes], failure_log: Path) -> CompiledKernel:
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={inst.arch}", *_OPTIONS, *inst.options]
    names, texts = [n.encode() for n in headers], list(headers.values())
    _, program = nvrtc.nvrtcCreateProgram(inst.source.encode(), b"tessera.cu", len(names), texts, names)
    try:
        expression = inst.expression.encode()
        nvrtc.nvrtcAddNameExpression(program, expression)
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            raise CompileError(_failure(inst, options, text, failure_log))
        if _serialised(text):
            advice = "wait before touching the registers of a wgmma, then `keep` them"
            raise WgmmaSerializedError(f"{_failure(inst, options, text, failure_log)}\n{advice}")
        lowered = nvrtc.nvrtcGetLoweredName(program, expression)[1].decode()
        cubin = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return CompiledKernel(lowered, inst.arch, *_resources(text, lowered), cubin=cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(size: Any, fill: Any, program: Any) -> bytes:
    """What a pair of NVRTC calls, one telling the size and one filling a buffer, returns for `program`."""
    _, count = size(program)
    buffer: bytes = b" " * count
    fill(program, buffer)
    return buffer


def _serialised(log: str) -> bool:
    """Whether the assembler had to order wgmma itself.

    C7510 serialises a whole kernel; C7517 and C7519 drain the pipeline where registers in flight are touched.
    """
    return bool(re.search(r"wgmma.*serialized|warpgroup\.(wait|arrive) is injected", log))


def _resources(log: str, entry: str) -> tuple[int, int, int]:
    """(registers, local bytes, spill bytes) a thread of `entry`, out of the assembler's report."""
    report = log.partition(f"'{entry}'")[2]
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    if not frame or not registers:
        raise CompileError(f"no resource report for {entry} in the assembler's log:\n{log}")
    return int(registers[1]), int(frame[1]), int(frame[2])


def _failure(inst: Instantiation, options: Sequence[str], log: str, path: Path) -> str:
    """Writes source and log to `path`; returns the message: the first lines that say what went wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    header = (CSRC / inst.header).read_text() if (CSRC / inst.header).is_file() else "(no such file)\n"
    partial.write_text(
        f"// {inst.expression}\n// {' '.join(options)}\n{inst.source}\n"
        f"/* {inst.header}: */\n{header}\n/*\n{log}\n*/\n"
    )
    partial.replace(path)
    lines = [line for line in log.splitlines() if "ptxas info    : Compil" not in line and line.strip()]
    telling = [line for line in lines if re.search("error|serialized|injected", line)] or lines
    shown = "\n".join(f"  {line}" for line in telling[:8])
    return f"{inst.expression} ({inst.header}) for {inst.arch}:\n{shown}\nsource and whole log: {path}"
