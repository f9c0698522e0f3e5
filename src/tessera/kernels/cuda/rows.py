"""Row-wise ops on CUDA: RMSNorm, SiLU times gate, int8 rows in tiles. Templates: csrc/cuda/elementwise."""

from collections.abc import Callable
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

FEW_ROWS = 128
"""Rows up to which what counts is how soon one is done: a vector a thread."""


@dataclass(frozen=True)
class Shape:
    """Blocks of `threads` threads with `vecs` vectors each; `blocks` of them share a row, one unless said."""

    threads: int
    vecs: int
    blocks: int = 1


def holding(width: int, vecs: int) -> Shape:
    """A block that holds a row: `vecs` vectors a thread, more where that takes too many threads."""
    count = width // VEC
    vecs = max(vecs, -(-count // MAX_THREADS))
    return Shape(-(-count // (WARP * vecs)) * WARP, vecs)


def sharing(width: int) -> Shape:
    """For blocks that need nothing of each other: one vector a thread."""
    count = width // VEC
    threads = next((t for t in (32, 64, 128) if count <= t), 256)
    return Shape(threads, 1, -(-count // threads))


@dataclass(frozen=True)
class Instance:
    """A kernel and how it is launched."""

    kernel: Kernel
    shape: Shape


@dataclass(frozen=True)
class Choice:
    """An instance for up to FEW_ROWS rows and one for more."""

    few: Instance
    many: Instance

    @classmethod
    def of(cls, make: Callable[[Shape], Kernel], few: Shape, many: Shape) -> "Choice":
        return cls(Instance(make(few), few), Instance(make(many), many))

    def __call__(self, rows: int) -> Instance:
        return self.few if rows <= FEW_ROWS else self.many

    @property
    def kernels(self) -> tuple[Kernel, Kernel]:
        return self.few.kernel, self.many.kernel


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

    def choice(self, residual: bool) -> Choice:
        width, quantize = self.problem.width, self.problem.quantize

        def make(shape: Shape) -> Kernel:
            flags = f"{residual}, {quantize}".lower()
            name = (
                f"tessera::rms_norm<{CPP_TYPES[self.problem.dtype]}, {shape.threads}, {shape.vecs}, {flags}>"
            )
            return kernel("elementwise/rms_norm.cuh", name, signature="PPPPPPPif")

        return Choice.of(make, holding(width, 1), holding(width, 2 if quantize else 4))

    @cached_property
    def plain(self) -> Choice:
        return self.choice(residual=False)

    @cached_property
    def fused(self) -> Choice:
        return self.choice(residual=True)

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
            chosen = (self.plain if residual is None else self.fused)(len(x))
            scale, row_sum = (rows.scale, rows.row_sum) if rows else (0, 0)
            chosen.kernel(
                len(x), chosen.shape.threads, x, 0 if residual is None else residual, self.weight, total, out,
                scale, row_sum, width, self.eps, pdl=True,
            )  # fmt: skip
        return rows or out, total


class CudaNorm(RowsKernel):
    op = "rms_norm"

    def bind(self, problem: RowsProblem, weight: Tensor, eps: float) -> BoundNorm:
        bound = BoundNorm(self.id, problem, upload(weight, problem.dtype), eps)
        announce(*bound.plain.kernels, *bound.fused.kernels)
        return bound


@dataclass(frozen=True, eq=False)
class BoundSiluMul:
    kernel_id: str
    problem: RowsProblem

    @cached_property
    def choice(self) -> Choice:
        def make(shape: Shape) -> Kernel:
            flags = str(self.problem.quantize).lower()
            name = (
                f"tessera::silu_mul<{CPP_TYPES[self.problem.dtype]}, {shape.threads}, {shape.vecs}, {flags}>"
            )
            return kernel("elementwise/silu_mul.cuh", name, signature="PPPPi")

        shape = holding(self.problem.width, 2) if self.problem.quantize else sharing(self.problem.width)
        return Choice.of(make, shape, shape)

    def __call__(self, gate_up: Tensor) -> Activation:
        """Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        width, count = self.problem.width, len(gate_up)
        check_rows(self.kernel_id, "gate_up", gate_up, 2 * width, self.problem.dtype)
        rows = empty_tiled(count, width) if self.problem.quantize else None
        out = rows.codes if rows else torch.empty((count, width), dtype=gate_up.dtype, device=gate_up.device)
        if count:
            chosen = self.choice(count)
            grid = count, chosen.shape.blocks, 1
            scale, row_sum = (rows.scale, rows.row_sum) if rows else (0, 0)
            chosen.kernel(grid, chosen.shape.threads, gate_up, out, scale, row_sum, width, pdl=True)
        return rows or out


class CudaSiluMul(RowsKernel):
    op = "silu_mul"

    def bind(self, problem: RowsProblem) -> BoundSiluMul:
        bound = BoundSiluMul(self.id, problem)
        announce(*bound.choice.kernels)
        return bound


@dataclass(frozen=True, eq=False)
class BoundQuantizeRows:
    kernel_id: str
    problem: RowsProblem

    @cached_property
    def choice(self) -> Choice:
        def make(shape: Shape) -> Kernel:
            sizes = f"{shape.threads}, {shape.vecs}"
            name = f"tessera::quantize_rows<{CPP_TYPES[self.problem.dtype]}, {sizes}>"
            return kernel("elementwise/quantize_rows.cuh", name, signature="PPPPi")

        return Choice.of(make, holding(self.problem.width, 1), holding(self.problem.width, 4))

    def __call__(self, x: Tensor) -> TiledRows:
        """Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        width = self.problem.width
        check_rows(self.kernel_id, "x", x, width, self.problem.dtype)
        rows = empty_tiled(len(x), width)
        if len(x):
            chosen = self.choice(len(x))
            chosen.kernel(
                len(x), chosen.shape.threads, x, rows.codes, rows.scale, rows.row_sum, width, pdl=True
            )
        return rows


class CudaQuantizeRows(RowsKernel):
    op = "quantize_rows"

    def bind(self, problem: RowsProblem) -> BoundQuantizeRows:
        bound = BoundQuantizeRows(self.id, problem)
        announce(*bound.choice.kernels)
        return bound
