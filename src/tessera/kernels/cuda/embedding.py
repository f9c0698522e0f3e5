"""Embedding tables on CUDA. Templates: csrc/cuda/elementwise/{embedding,gather_tiled}.cuh."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda.arguments import CPP_TYPES, SHORT_NAMES, VEC, announce, runs_on, upload
from tessera.kernels.cuda.gemm.weights import BYTES, PackedWeights, layout_of, pack
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import EmbeddingProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.numerics.qtensor import QTensor

ID_TYPES: Final = {torch.int32: "tessera::i32", torch.int64: "tessera::i64"}


def gather_kernel(ids: torch.dtype) -> Kernel:
    return kernel("elementwise/embedding.cuh", f"tessera::gather_rows<{ID_TYPES[ids]}>", signature="PPPii")


def tiled_kernel(ids: torch.dtype, dtype: torch.dtype) -> Kernel:
    name = f"tessera::gather_tiled<{CPP_TYPES[dtype]}, {ID_TYPES[ids]}>"
    return kernel("elementwise/gather_tiled.cuh", name, signature="PPPPii")


def _check_ids(kernel_id: str, token_ids: Tensor) -> None:
    if token_ids.dtype not in ID_TYPES or token_ids.ndim != 1 or not token_ids.is_contiguous():
        raise KernelArgumentError(
            f"{kernel_id}: token_ids must be contiguous int32 or int64 [T]; "
            f"got {token_ids.dtype} {tuple(token_ids.shape)}"
        )


def _threads(width: int) -> int:
    return min(256, -(-width // VEC // 32) * 32)


@dataclass(frozen=True, eq=False)
class BoundEmbedding:
    """`table` [vocab, H] of a 16-bit type on the device."""

    kernel_id: str
    table: Tensor

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def __call__(self, token_ids: Tensor) -> Tensor:
        """An id outside the table gives a row of NaN. Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        _check_ids(self.kernel_id, token_ids)
        vocab, width = self.table.shape
        out = torch.empty((len(token_ids), width), dtype=self.table.dtype, device=self.table.device)
        if len(token_ids):
            launch = gather_kernel(token_ids.dtype)
            launch(len(token_ids), _threads(width), self.table, token_ids, out, width, vocab, pdl=True)
        return out


@dataclass(frozen=True, eq=False)
class BoundTiledEmbedding:
    """An 8-bit table as a tied head's GEMM holds it."""

    kernel_id: str
    table: PackedWeights
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def __call__(self, token_ids: Tensor) -> Tensor:
        """An id outside the table gives a row of NaN. Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        _check_ids(self.kernel_id, token_ids)
        vocab, width = self.table.tile.shape
        out = torch.empty((len(token_ids), width), dtype=self.dtype, device=token_ids.device)
        if len(token_ids):
            launch, table = tiled_kernel(token_ids.dtype, self.dtype), self.table
            launch(
                len(token_ids), _threads(width), table.tiles, table.scale, token_ids, out, width, vocab,
                pdl=True,
            )  # fmt: skip
        return out


@dataclass(frozen=True)
class CudaEmbedding:
    """Rows of a table of plain 16-bit floats, or of int8 with a scale a row."""

    family: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_embedding"

    def can_implement(self, problem: EmbeddingProblem) -> Verdict:
        verdict = runs_on(self.family, self.dtype, problem.device, problem.dtype)
        if not verdict.ok:
            return verdict
        if not problem.table.is_plain and layout_of(problem.table) is not BYTES:
            return no(f"takes plain floats, or int8 with a scale a row, not {problem.table}")
        if problem.width % VEC:
            return no(f"width {problem.width} is not a multiple of {VEC}")
        return verdict

    def bind(self, problem: EmbeddingProblem, table: QTensor) -> BoundEmbedding | BoundTiledEmbedding:
        if problem.table.is_plain:
            announce(*map(gather_kernel, ID_TYPES))
            return BoundEmbedding(self.id, upload(table.codes, problem.dtype))
        announce(*(tiled_kernel(ids, problem.dtype) for ids in ID_TYPES))
        return BoundTiledEmbedding(self.id, pack(table), problem.dtype)
