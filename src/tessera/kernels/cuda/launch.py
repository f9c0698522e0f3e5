"""Launching template instances: `kernel(...)` names one, calling it compiles it once and launches it.

A launch packs its arguments into a buffer laid out when the kernel was named and makes one driver call, so it
costs the host a few microseconds and can be captured in a CUDA graph.
"""

import ctypes
import logging
import os
import struct
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tessera.kernels.cuda import device, driver, sass
from tessera.kernels.cuda.errors import CaptureCompileError, LaunchError
from tessera.kernels.jit.nvrtc import CompiledKernel, Instantiation, compile_kernel, compile_many

log = logging.getLogger(__name__)

SYNC_LAUNCH = os.environ.get("TESSERA_SYNC_LAUNCH") == "1"
EXTRA_OPTIONS = tuple(os.environ.get("TESSERA_NVRTC_OPTIONS", "").split())
_DEFAULT_SMEM = 48 * 1024
_DEPENDENT_LAUNCH_SM = 90  # first compute capability on which a kernel may start before another has ended
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NUMBERS = (int, float)
_PLAIN = (int, float, bytes)
_MAX_SHAPES = 4096  # launch configurations kept a kernel
_CODES = {"P": "pointer", "i": "int32", "I": "uint32", "q": "int64", "f": "float32", "M": "tensor map"}
_FORMATS = {"M": "128s"}  # of struct, where it is not the code itself
# CUlaunchConfig: grid, block, shared bytes; stream; attributes and their count
_CONFIG = struct.Struct("@7IPPI4x")
# CUlaunchAttribute: id, value
_ATTRIBUTE = struct.Struct("@I4x64s")

Dim = int | tuple[int, int, int]
Cluster = tuple[int, int, int] | None


class Kernel:
    """One template instance. Make it with `kernel`; call it as `fn(grid, block, *args)`.

    Thread-safe. Compiled and loaded on first use for each device; `prepare` does that for many at once.
    """

    def __init__(self, inst: Instantiation, signature: str, max_smem: int) -> None:
        unknown = set(signature) - set(_CODES)
        if unknown:
            raise ValueError(
                f"{inst.expression}: signature {signature!r} has {unknown}, known are {set(_CODES)}"
            )
        if "M" in signature[1:]:
            raise ValueError(f"{inst.expression}: a tensor map (M) is the first parameter, not {signature!r}")
        self.inst = inst
        self.signature = signature
        self.max_smem = max_smem
        self._functions: dict[int, int] = {}
        self._configs: dict[tuple[Any, ...], _Config] = {}
        self._lock = threading.Lock()
        self._formats = [_FORMATS.get(code, code) for code in signature]
        self._layout = struct.Struct("@" + "".join(self._formats))
        # "0X" pads up to the alignment of X, which gives the offset that a C struct would have.
        self._offsets = [
            struct.calcsize(f"@{''.join(self._formats[:k])}0{code}") if k else 0
            for k, code in enumerate(signature)
        ]
        self._pack = self._layout.pack_into
        self._args = ctypes.create_string_buffer(max(self._layout.size, 1))
        base = ctypes.addressof(self._args)
        self._params = (ctypes.c_void_p * max(len(signature), 1))(*[base + o for o in self._offsets])
        self._params_address = ctypes.addressof(self._params)

    def __repr__(self) -> str:
        return f"Kernel({self.inst.header}, {self.inst.expression})"

    def __call__(
        self,
        grid: Dim,
        block: Dim,
        *args: Any,
        smem: int = 0,
        pdl: bool = False,
        cluster: Cluster = None,
    ) -> None:
        """Enqueues one launch on torch's current stream of the current device.

        `args` follow the signature: a pointer is an int address or a CUDA tensor, a tensor map is 128 bytes.
        `smem` is dynamic shared memory in bytes. `pdl` lets the launch start before its predecessor in the
        stream has ended, on devices that can; the kernel must then wait with `griddepcontrol.wait` before it
        touches anything mutable.
        `cluster` is in blocks.

        Raises TypeError (arguments), CaptureCompileError, LaunchError and whatever compiling raises.
        """
        current_device, current_stream, launch, tensor = _runtime()
        index = current_device()
        function = self._functions.get(index) or self._load(index)
        shape = (grid, block, smem, pdl, cluster, current_stream(index))
        with self._lock:
            config = self._configs.get(shape) or self._configure(shape, args)
            try:
                self._pack(self._args, 0, *[a.data_ptr() if type(a) is tensor else a for a in args])
            except struct.error:
                self._pack_checked(args)
            status = launch(config.address, function, self._params_address, None)
            if status == _INVALID_CONTEXT:
                driver.ensure_context(index)
                status = launch(config.address, function, self._params_address, None)
        if SYNC_LAUNCH and not status:
            status = _synchronize(shape[-1])
        if status:
            raise LaunchError(
                f"{self.inst.expression} with grid {_dim(grid)}, block {_dim(block)}, {smem} bytes of shared "
                f"memory (limit {max(self.max_smem, _DEFAULT_SMEM)}), cluster {cluster}, pdl {pdl}: "
                f"{driver.error_text(status)}"
            )

    def _configure(self, shape: tuple[Any, ...], args: tuple[Any, ...]) -> "_Config":
        """A launch configuration not seen before: the arguments are examined once for each."""
        self._examine(args)
        if len(self._configs) == _MAX_SHAPES:
            self._configs.clear()
        grid, block, smem, pdl, cluster, stream = shape
        pdl = pdl and device.current().sm >= _DEPENDENT_LAUNCH_SM
        config = self._configs[shape] = _Config(grid, block, smem, pdl, cluster, stream)
        return config

    def _pack_checked(self, args: tuple[Any, ...]) -> None:
        """Packs subclasses of Tensor too; raises a TypeError that names what is wrong."""
        self._examine(args)
        self._pack(self._args, 0, *[a if isinstance(a, _PLAIN) else a.data_ptr() for a in args])

    def compiled(self, arch: str | None = None) -> CompiledKernel:
        """Machine code for `arch`: by default the one named in `kernel`, else the current device's."""
        started = time.perf_counter()
        compiled = compile_kernel(self.instance(arch))
        log.debug("%s: compiled or read in %.3f s", self, time.perf_counter() - started)
        self._dump(compiled)
        return compiled

    def instance(self, arch: str | None = None) -> Instantiation:
        """What is handed to the compiler, with the architecture filled in."""
        arch = arch or self.inst.arch or device.current().arch
        return Instantiation(
            self.inst.header,
            self.inst.expression,
            arch,
            self.inst.options + EXTRA_OPTIONS,
            self.inst.allowed_local_bytes,
        )

    def blocks_per_sm(self, threads: int, smem: int = 0) -> int:
        """How many blocks of `threads` threads and `smem` bytes of dynamic shared memory one SM holds."""
        return driver.occupancy(self._loaded(), threads, smem)

    def _loaded(self) -> int:
        index = device.current().index
        return self._functions.get(index) or self._load(index)

    def _load(self, index: int, compiled: CompiledKernel | None = None) -> int:
        import torch

        if torch.cuda.is_current_stream_capturing():
            raise CaptureCompileError(
                f"{self.inst.expression} is not loaded and a CUDA graph is being captured: "
                "call it once, or `prepare([...])` it, before the capture"
            )
        info = device.current()
        device.check_toolchain()
        compiled = compiled or self.compiled()
        driver.ensure_context(index)
        function = driver.load_function(compiled.cubin, compiled.name, self.inst.expression)
        self._check_layout(driver.parameter_layout(function))
        if self.max_smem > _DEFAULT_SMEM:
            if self.max_smem > info.smem_per_block:
                raise LaunchError(
                    f"{self.inst.expression} asks for {self.max_smem} bytes of shared memory, a block of "
                    f"{info.name} can have {info.smem_per_block}: use fewer stages or a smaller tile"
                )
            driver.allow_dynamic_smem(function, self.max_smem, self.inst.expression)
        self._functions[index] = function
        return function

    def _check_layout(self, layout: list[tuple[int, int]] | None) -> None:
        """Compares the signature with the parameters that the compiled kernel has.

        A tensor map is aligned from where the driver counts, which need not be the first parameter.
        """
        if layout:
            layout = [(offset - layout[0][0], size) for offset, size in layout]
        expected = [(o, struct.calcsize(f)) for o, f in zip(self._offsets, self._formats, strict=True)]
        if layout is not None and layout != expected:
            raise TypeError(
                f"{self.inst.expression} was named with signature {self.signature!r}, that is (offset, size) "
                f"{expected}, but its parameters are {layout}"
            )

    def _examine(self, args: tuple[Any, ...]) -> None:
        """Raises TypeError for the first argument that does not fit the signature."""
        name, signature = self.inst.expression, self.signature
        if len(args) != len(signature):
            raise TypeError(f"{name} takes {len(signature)} arguments ({signature}), got {len(args)}")
        for k, (code, value) in enumerate(zip(signature, args, strict=True)):
            try:
                if code == "P" and not isinstance(value, int) and not value.is_cuda:
                    raise TypeError(f"the tensor is on {value.device}")
                if code == "M" and len(value) != driver.TENSOR_MAP_BYTES:
                    raise TypeError(f"it has {len(value)} bytes")
                struct.pack(
                    self._formats[k],
                    value.data_ptr() if code == "P" and not isinstance(value, int) else value,
                )
            except (AttributeError, TypeError, struct.error) as error:
                shown = f"{type(value).__name__}{f' {value}' if isinstance(value, _NUMBERS) else ''}"
                raise TypeError(
                    f"{name}: argument {k} must be a {_CODES[code]}, got {shown} ({error})"
                ) from error

    def _dump(self, compiled: CompiledKernel) -> None:
        if directory := os.environ.get("TESSERA_DUMP_SASS"):
            path = Path(directory) / f"{compiled.name[:120]}.{compiled.arch}.sass"
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.tmp")
            partial.write_text(f"// {self.inst.expression}\n{sass.disassemble(compiled.cubin)}")
            partial.replace(path)


@cache
def kernel(
    header: str,
    expression: str,
    *,
    signature: str,
    max_smem: int = 0,
    arch: str | None = None,
    options: tuple[str, ...] = (),
    allowed_local_bytes: int = 0,
) -> Kernel:
    """Names one instance of a `__global__` template; cheap, and the same arguments give the same object.

    `header` is relative to `kernels/csrc/cuda`; `expression` is a C++ name expression; `signature` has one
    code a parameter: P pointer, i int32, I uint32, q int64, f float32; M, a tensor
    map, may be the first. `max_smem` is the most dynamic shared memory that a launch will ask for, in bytes.
    `arch` defaults to that of the current device at first use; `options` and `allowed_local_bytes` are those
    of `Instantiation`.
    Raises ValueError for an unknown code, or an M that is not the first.
    """
    inst = Instantiation(header, expression, arch or "", options, allowed_local_bytes)
    return Kernel(inst, signature, max_smem)


def prepare(kernels: Iterable[Kernel]) -> None:
    """Compiles in parallel and loads, on the current device, every kernel that is not loaded yet."""
    index = device.current().index
    missing = [k for k in dict.fromkeys(kernels) if index not in k._functions]
    for fn, compiled in zip(missing, compile_many(k.instance() for k in missing), strict=True):
        fn._dump(compiled)
        fn._load(index, compiled)


@cache
def _runtime() -> tuple[Any, Any, Any, Any]:
    """Current device, raw current stream of a device, driver launch; Tensor. Looked up once."""
    import torch

    current = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    return *current, driver.lib().cuLaunchKernelEx, torch.Tensor


def _dim(size: Dim) -> tuple[int, int, int]:
    return size if isinstance(size, tuple) else (size, 1, 1)


class _Config:
    """A CUlaunchConfig in memory of its own."""

    __slots__ = ("_attributes", "_buffer", "address")

    def __init__(self, grid: Dim, block: Dim, smem: int, pdl: bool, cluster: Cluster, stream: int) -> None:
        records = []
        if cluster:
            records.append(_ATTRIBUTE.pack(driver.LAUNCH_CLUSTER_DIMENSION, struct.pack("@3I", *cluster)))
        if pdl:
            serialization = driver.LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION
            records.append(_ATTRIBUTE.pack(serialization, struct.pack("@i", 1)))
        self._attributes = ctypes.create_string_buffer(b"".join(records) or b"\0")
        attributes = ctypes.addressof(self._attributes)
        self._buffer = ctypes.create_string_buffer(
            _CONFIG.pack(*_dim(grid), *_dim(block), smem, stream, attributes, len(records))
        )
        self.address = ctypes.addressof(self._buffer)


def _synchronize(stream: int) -> int:
    """CUresult of waiting for `stream`, which a capture does not allow."""
    import torch

    return 0 if torch.cuda.is_current_stream_capturing() else driver.synchronize(stream)
