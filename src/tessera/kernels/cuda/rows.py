"""Row-wise ops on CUDA: RMSNorm, SiLU times gate, int8 rows in tiles. Templates: csrc/cuda/elementwise."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tessera.kernels.cuda.arguments import (
    CPP_TYPES,
    SHORT_NAMES,
    VEC,
    announce,
    check_rows,
    runs_on,
    upload,
)
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.cuda.tiled_rows import empty_tiled
from tessera.kernels.ops import RowsProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import Activation, TiledRows

WARP = 32
MAX_THREADS = 1024
MAX_VECS = 4  # vectors a thread keeps in registers
MAX_WIDTH = MAX_THREADS * MAX_VECS * VEC


def row_shape(width: int) -> tuple[int, int]:
    """(threads, vectors a thread) of a block that holds a row: two vectors where that is enough, and no more
    warps than the row has use for.
    """
    vecs = width // VEC
    each = 1 if vecs <= WARP else max(2, -(-vecs // MAX_THREADS))
    return -(-vecs // (WARP * each)) * WARP, each


def split_shape(width: int) -> tuple[int, int]:
    """(threads, blocks a row) where blocks need nothing of each other: one vector a thread."""
    vecs = width // VEC
    threads = next((t for t in (32, 64, 128) if vecs <= t), 256)
    return threads, -(-vecs // threads)


@dataclass(frozen=True)
class RowsKernel:
    """What the three row-wise kernels share: one instance a family and type."""

    family: str
    dtype: torch.dtype

    op = ""

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_{self.op}"

    def can_implement(self, problem: RowsProblem) -> Verdict:
        verdict = runs_on(self.family, self.dtype, problem.device, problem.dtype)
        if not verdict.ok:
            return verdict
        if problem.width % VEC or not 0 < problem.width <= MAX_WIDTH:
            return no(f"width {problem.width} is not a multiple of {VEC} up to {MAX_WIDTH}")
        return verdict


@dataclass(frozen=True, eq=False)
class BoundNorm:
    """`weight` [H] of the problem's type on the device."""

    kernel_id: str
    problem: RowsProblem
    weight: Tensor
    eps: float

    @cached_property
    def shape(self) -> tuple[int, int]:
        return row_shape(self.problem.width)

    def instance(self, residual: bool) -> Kernel:
        threads, vecs = self.shape
        flags = f"{residual}, {self.problem.quantize}".lower()
        name = f"tessera::rms_norm<{CPP_TYPES[self.problem.dtype]}, {threads}, {vecs}, {flags}>"
        return kernel("elementwise/rms_norm.cuh", name, signature="PPPPPPPif")

    @cached_property
    def plain(self) -> Kernel:
        return self.instance(residual=False)

    @cached_property
    def fused(self) -> Kernel:
        return self.instance(residual=True)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]:
        """Sums are rounded to the type of x before they are normalised. Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        width, dtype = self.problem.width, self.problem.dtype
        check_rows(self.kernel_id, "x", x, width, dtype)
        total = x
        if residual is not None:
            check_rows(self.kernel_id, "residual", residual, width, dtype, rows=len(x))
            total = torch.empty_like(x)
        rows = empty_tiled(len(x), width) if self.problem.quantize else None
        out = torch.empty_like(x) if rows is None else rows.codes
        if len(x):
            launch = self.plain if residual is None else self.fused
            scale, row_sum = (rows.scale, rows.row_sum) if rows else (0, 0)
            launch(
                len(x), self.shape[0], x, 0 if residual is None else residual, self.weight, total, out,
                scale, row_sum, width, self.eps, pdl=True,
            )  # fmt: skip
        return rows or out, total


class CudaNorm(RowsKernel):
    op = "rms_norm"

    def bind(self, problem: RowsProblem, weight: Tensor, eps: float) -> BoundNorm:
        bound = BoundNorm(self.id, problem, upload(weight, problem.dtype), eps)
        announce(bound.plain, bound.fused)
        return bound


@dataclass(frozen=True, eq=False)
class BoundSiluMul:
    kernel_id: str
    problem: RowsProblem

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(threads, vectors a thread, blocks a row)."""
        if self.problem.quantize:
            return *row_shape(self.problem.width), 1
        threads, blocks = split_shape(self.problem.width)
        return threads, 1, blocks

    @cached_property
    def launch(self) -> Kernel:
        threads, vecs, _ = self.shape
        quantize = str(self.problem.quantize).lower()
        name = f"tessera::silu_mul<{CPP_TYPES[self.problem.dtype]}, {threads}, {vecs}, {quantize}>"
        return kernel("elementwise/silu_mul.cuh", name, signature="PPPPi")

    def __call__(self, gate_up: Tensor) -> Activation:
        """Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        width, count = self.problem.width, len(gate_up)
        check_rows(self.kernel_id, "gate_up", gate_up, 2 * width, self.problem.dtype)
        rows = empty_tiled(count, width) if self.problem.quantize else None
        out = rows.codes if rows else torch.empty((count, width), dtype=gate_up.dtype, device=gate_up.device)
        if count:
            threads, _, blocks = self.shape
            scale, row_sum = (rows.scale, rows.row_sum) if rows else (0, 0)
            self.launch((count, blocks, 1), threads, gate_up, out, scale, row_sum, width, pdl=True)
        return rows or out


class CudaSiluMul(RowsKernel):
    op = "silu_mul"

    def bind(self, problem: RowsProblem) -> BoundSiluMul:
        bound = BoundSiluMul(self.id, problem)
        announce(bound.launch)
        return bound


@dataclass(frozen=True, eq=False)
class BoundQuantizeRows:
    kernel_id: str
    problem: RowsProblem

    @cached_property
    def launch(self) -> Kernel:
        threads, vecs = row_shape(self.problem.width)
        name = f"tessera::quantize_rows<{CPP_TYPES[self.problem.dtype]}, {threads}, {vecs}>"
        return kernel("elementwise/quantize_rows.cuh", name, signature="PPPPi")

    def __call__(self, x: Tensor) -> TiledRows:
        """Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        width = self.problem.width
        check_rows(self.kernel_id, "x", x, width, self.problem.dtype)
        rows = empty_tiled(len(x), width)
        if len(x):
            threads, _ = row_shape(width)
            self.launch(len(x), threads, x, rows.codes, rows.scale, rows.row_sum, width, pdl=True)
        return rows


class CudaQuantizeRows(RowsKernel):
    op = "quantize_rows"

    def bind(self, problem: RowsProblem) -> BoundQuantizeRows:
        bound = BoundQuantizeRows(self.id, problem)
        announce(bound.launch)
        return bound
