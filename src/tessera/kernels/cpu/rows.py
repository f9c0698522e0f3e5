"""Compiled row-wise ops: RMSNorm, SiLU times gate, int8 quantization; each to float32 or to int8 rows."""

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import check_rows, empty_rows
from tessera.kernels.cpu.kernel import CpuKernel
from tessera.kernels.cpu.library import require
from tessera.kernels.ops import RowsProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import Activation, QuantizedRows


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

    def _output(self, rows: int) -> tuple[Activation, tuple[int | None, ...]]:
        """What the kernel fills, and its addresses: floats, codes, scale, row_sum."""
        if self._quantize:
            q = empty_rows(rows, self._width)
            return q, (None, q.codes.data_ptr(), q.scale.data_ptr(), q.row_sum.data_ptr())
        y = torch.empty(rows, self._width)
        return y, (y.data_ptr(), None, None, None)


class NormKernel(_RowsKernel):
    """RMSNorm (Zhang and Sennrich 2019) of x + residual."""

    def bind(self, problem: RowsProblem, weight: Tensor, eps: float) -> "BoundNorm":
        return BoundNorm(self, problem, weight, eps)


class BoundNorm(_BoundRows):
    def __init__(self, kernel: CpuKernel, problem: RowsProblem, weight: Tensor, eps: float) -> None:
        super().__init__(kernel, problem)
        self._weight = weight.float().contiguous()
        self._weight_address = self._weight.data_ptr()
        self._eps = eps

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]:
        rows = check_rows(self.kernel_id, "x", x, self._width)
        total, residual_address = x, None
        if residual is not None:
            check_rows(self.kernel_id, "residual", residual, self._width)
            total, residual_address = torch.empty(rows, self._width), residual.data_ptr()
        y, addresses = self._output(rows)
        self._library.functions(rows).norm(
            x.data_ptr(), residual_address, self._weight_address, self._eps, rows, self._width,
            total.data_ptr(), *addresses,
        )  # fmt: skip
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
        self._library.functions(rows).silu_mul(gate_up.data_ptr(), rows, self._width, *addresses)
        runs[self.kernel_id] += 1
        return y


class QuantizeRowsKernel(_RowsKernel):
    """Bit-equal to `numerics.quantize_rows`."""

    def bind(self, problem: RowsProblem) -> "BoundQuantizeRows":
        return BoundQuantizeRows(self, problem)


class BoundQuantizeRows(_BoundRows):
    def __call__(self, x: Tensor) -> QuantizedRows:
        rows = check_rows(self.kernel_id, "x", x, self._width)
        q = empty_rows(rows, self._width)
        self._library.functions(rows).quantize_rows(
            x.data_ptr(), rows, self._width, q.codes.data_ptr(), q.scale.data_ptr(), q.row_sum.data_ptr()
        )
        runs[self.kernel_id] += 1
        return q
