"""Compiled row-wise ops: RMSNorm, SiLU times gate, int8 quantization; each to float32 or to int8 rows."""

import ctypes
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import check_rows
from tessera.kernels.cpu.int8_rows import Int8Rows
from tessera.kernels.cpu.kernel import CpuKernel
from tessera.kernels.cpu.library import LONG_ROWS, require
from tessera.kernels.ops import RowsProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import Activation, QuantizedRows

_Addresses = tuple[int | None, int | None, int | None, int | None]
_NO_ROWS: Final = (None, None, None)


class NormDescriptor(ctypes.Structure):
    """`Norm` of csrc/cpu/rows.h."""

    _fields_ = (("weight", ctypes.c_void_p), ("width", ctypes.c_int64), ("eps", ctypes.c_float))


class _RowsKernel(CpuKernel):
    def can_implement(self, problem: RowsProblem) -> Verdict:
        if problem.dtype != torch.float32:
            return no(f"hidden states are {problem.dtype}, not float32")
        return self.runs_on(problem.device)


class _BoundRows:
    def __init__(self, kernel: CpuKernel, problem: RowsProblem) -> None:
        self.kernel_id = kernel.id
        self._library = require(kernel.arch)
        self._width = problem.width
        self._quantize = problem.quantize

    def _output(self, rows: int) -> tuple[Activation, _Addresses]:
        """What the kernel fills, and where: floats, codes, scales, row sums."""
        if self._quantize:
            q = Int8Rows(rows, self._width)
            return q, (None, *q.addresses)
        y = torch.empty(rows, self._width)
        return y, (y.data_ptr(), *_NO_ROWS)


class NormKernel(_RowsKernel):
    """RMSNorm (Zhang and Sennrich 2019) of x + residual."""

    def bind(self, problem: RowsProblem, weight: Tensor, eps: float) -> "BoundNorm":
        return BoundNorm(self, problem, weight, eps)


class BoundNorm(_BoundRows):
    def __init__(self, kernel: CpuKernel, problem: RowsProblem, weight: Tensor, eps: float) -> None:
        super().__init__(kernel, problem)
        self._weight = weight.float().contiguous()
        self._descriptor = NormDescriptor(self._weight.data_ptr(), problem.width, eps)
        self._address = ctypes.addressof(self._descriptor)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]:
        rows = check_rows(self.kernel_id, "x", x, self._width)
        total, added = x, None
        if residual is not None:
            check_rows(self.kernel_id, "residual", residual, self._width, rows=rows)
            total, added = torch.empty(rows, self._width), residual.data_ptr()
        y, addresses = self._output(rows)
        run = self._library.short if rows < LONG_ROWS else self._library.long
        run.norm(self._address, x.data_ptr(), added, rows, total.data_ptr(), *addresses)
        runs[self.kernel_id] += 1
        return y, total


class SiluMulKernel(_RowsKernel):
    """silu(gate) * up."""

    def bind(self, problem: RowsProblem) -> "BoundSiluMul":
        return BoundSiluMul(self, problem)


class BoundSiluMul(_BoundRows):
    def __call__(self, gate_up: Tensor) -> Activation:
        rows = check_rows(self.kernel_id, "gate_up", gate_up, 2 * self._width)
        y, addresses = self._output(rows)
        run = self._library.short if rows < LONG_ROWS else self._library.long
        run.silu_mul(gate_up.data_ptr(), rows, self._width, *addresses)
        runs[self.kernel_id] += 1
        return y


class QuantizeRowsKernel(_RowsKernel):
    """Bit-equal to `numerics.quantize_rows`."""

    def bind(self, problem: RowsProblem) -> "BoundQuantizeRows":
        return BoundQuantizeRows(self, problem)


class BoundQuantizeRows(_BoundRows):
    def __call__(self, x: Tensor) -> QuantizedRows:
        rows = check_rows(self.kernel_id, "x", x, self._width)
        q = Int8Rows(rows, self._width)
        run = self._library.short if rows < LONG_ROWS else self._library.long
        run.quantize_rows(x.data_ptr(), rows, self._width, *q.addresses)
        runs[self.kernel_id] += 1
        return q
