"""Compiled embedding look-up, from the packed form an output layer multiplies with: tied tables are one."""

import ctypes

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import describe as describe_tensor
from tessera.kernels.cpu.kernel import CpuKernel
from tessera.kernels.cpu.layouts import Packed, format_of, packed
from tessera.kernels.cpu.library import LONG_ROWS, require
from tessera.kernels.cpu.linear_float import channel_scale, describe
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import EmbeddingProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.numerics import QTensor


class EmbeddingKernel(CpuKernel):
    def can_implement(self, problem: EmbeddingProblem) -> Verdict:
        if format_of(problem.table) not in ("w8", "floats"):
            return no(f"the table is {problem.table}: 8 bits per row and plain floats are implemented")
        if problem.dtype != torch.float32:
            return no(f"hidden states are {problem.dtype}, not float32")
        return self.runs_on(problem.device)

    def bind(self, problem: EmbeddingProblem, table: QTensor) -> "BoundEmbedding":
        return BoundEmbedding(self, packed(table))


class BoundEmbedding:
    """`packed` is the very object a linear layer over the same QTensor holds."""

    def __init__(self, kernel: EmbeddingKernel, table: Packed) -> None:
        self.kernel_id = kernel.id
        self.packed = table
        self._vocab, self._width = table.tile.shape
        self._scale = channel_scale(table)
        self._library = require(kernel.arch)
        self._descriptor = describe(table, self._scale, None)
        self._address = ctypes.addressof(self._descriptor)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def __call__(self, token_ids: Tensor) -> Tensor:
        integers = token_ids.dtype in (torch.int32, torch.int64)
        if token_ids.dim() != 1 or not integers or not token_ids.is_contiguous() or not token_ids.is_cpu:
            wanted = "contiguous int32 or int64 [T] on the CPU"
            raise KernelArgumentError(
                f"{self.kernel_id}: token_ids is {describe_tensor(token_ids)}, wanted {wanted}"
            )
        rows = token_ids.shape[0]
        y = torch.empty(rows, self._width)
        run = self._library.short if rows < LONG_ROWS else self._library.long
        status = run.embedding(
            self._address, token_ids.data_ptr(), token_ids.element_size(), rows, y.data_ptr()
        )
        if status:
            low, high = (int(v) for v in token_ids.aminmax())
            raise KernelArgumentError(
                f"{self.kernel_id}: token_ids span {low}..{high}, the table has rows 0..{self._vocab - 1}"
            )
        runs[self.kernel_id] += 1
        return y
