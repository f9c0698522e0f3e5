"""The ops a model is made of: their problems, their protocols and their registries.

A kernel is bound to its constants (weights, tables) once, when the model is built; the bound object is what
layers call at every step. Hidden states between kernels are float32 on the CPU and fp16 or bf16 on CUDA
(`dtype` of the problem).
"""

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from tessera.kernels.registry import Device, Kernel, Registry
from tessera.kernels.types import Activation, AttentionMetadata, Int8Rows
from tessera.numerics.qtensor import QTensor
from tessera.spec import Chain, LinearSpec


@dataclass(frozen=True, slots=True)
class LinearProblem:
    """y = x W^T + b as `spec` says, on `device`."""

    device: Device
    spec: LinearSpec

    def __str__(self) -> str:
        s = self.spec
        transforms = "".join(f", {t.kind} transform" for t in s.transforms)
        return (
            f"W [{s.out_features}, {s.in_features}] {s.weight}, x {s.activation}{transforms}, y {s.output} "
            f"on {self.device}"
        )


class BoundLinear(Protocol):
    """x [T, K] (floats, or int8 rows where the spec's activation is int8) -> y [T, N]."""

    @property
    def kernel_id(self) -> str: ...
    @property
    def nbytes(self) -> int:
        """Bytes of packed weights and parameters held."""
        ...

    def __call__(self, x: Activation) -> Tensor: ...


class LinearKernel(Kernel, Protocol):
    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> BoundLinear: ...


@dataclass(frozen=True, slots=True)
class RowsProblem:
    """A row-wise op over `width` columns; `quantize` asks for int8 rows instead of `dtype`."""

    device: Device
    width: int
    dtype: torch.dtype
    quantize: bool


class BoundNorm(Protocol):
    """(x [T, H], residual [T, H] or None) -> (RMSNorm(x + residual) * weight, x + residual)."""

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]: ...


class NormKernel(Kernel, Protocol):
    def bind(self, problem: RowsProblem, weight: Tensor, eps: float) -> BoundNorm: ...


class BoundSiluMul(Protocol):
    """gate_up [T, 2 I] -> silu(gate) * up [T, I]."""

    def __call__(self, gate_up: Tensor) -> Activation: ...


class SiluMulKernel(Kernel, Protocol):
    def bind(self, problem: RowsProblem) -> BoundSiluMul: ...


class BoundQuantizeRows(Protocol):
    """x [T, K] -> int8 rows."""

    def __call__(self, x: Tensor) -> Int8Rows: ...


class QuantizeRowsKernel(Kernel, Protocol):
    def bind(self, problem: RowsProblem) -> BoundQuantizeRows: ...


@dataclass(frozen=True, slots=True)
class EmbeddingProblem:
    """Rows of a (possibly quantized) table of `vocab` rows of `width`."""

    device: Device
    vocab: int
    width: int
    table: Chain
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"a table [{self.vocab}, {self.width}] {self.table} to {self.dtype} on {self.device}"


class BoundEmbedding(Protocol):
    """token_ids int32 or int64 [T] -> [T, H]."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, token_ids: Tensor) -> Tensor: ...


class EmbeddingKernel(Kernel, Protocol):
    def bind(self, problem: EmbeddingProblem, table: QTensor) -> BoundEmbedding: ...


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """Rotary embedding, KV append and causal attention over a paged cache; K and V are stored by `kv`."""

    device: Device
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv: Chain
    dtype: torch.dtype
    page_size: int = 64

    def __str__(self) -> str:
        return (
            f"{self.num_heads} heads of {self.head_dim}, {self.num_kv_heads} KV heads, K and V {self.kv} "
            f"in pages of {self.page_size} tokens, {self.dtype} on {self.device}"
        )


class BoundAttention(Protocol):
    """qkv [T, (q heads + 2 kv heads) * D] -> attention output [T, q heads * D].

    Rotates q and k, appends k and v at `meta.slot_mapping`, then attends causally to everything of the
    sequence in the cache, this step's tokens included, always as stored (quantized everywhere).
    """

    def allocate(self, num_pages: int) -> Tensor:
        """A cache of `num_pages` pages for one layer."""
        ...

    @property
    def bytes_per_page(self) -> int: ...

    def __call__(self, qkv: Tensor, cache: Tensor, meta: AttentionMetadata) -> Tensor: ...


class AttentionKernel(Kernel, Protocol):
    def bind(self, problem: AttentionProblem, cos: Tensor, sin: Tensor) -> BoundAttention:
        """`cos` and `sin` float32 [max_position, D / 2] (half-split pairs: i with i + D / 2)."""
        ...


LINEAR: Final = Registry[LinearKernel]("linear")
NORM: Final = Registry[NormKernel]("rms_norm")
SILU_MUL: Final = Registry[SiluMulKernel]("silu_mul")
QUANTIZE_ROWS: Final = Registry[QuantizeRowsKernel]("quantize_rows")
EMBEDDING: Final = Registry[EmbeddingKernel]("embedding")
ATTENTION: Final = Registry[AttentionKernel]("attention")
