"""The reference: a model's layers in plain torch, no kernels and no pages.

It is the executable specification of a whole model: weights are dequantized, int8 activations and the KV
cache are rounded as the formats say and computed with in floats. An unquantized model is not rounded at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from tessera.kernels.types import Activation
from tessera.layers.dense import DenseAttention
from tessera.layers.linear import SideBySide
from tessera.layers.types import EMBEDDING_NAME, HEAD_NAME, LinearLayer, Weights
from tessera.numerics.activation import dequantize_rows, quantize_rows
from tessera.numerics.qtensor import QTensor, plain
from tessera.spec import A32, Chain, ModelConfig


@dataclass(frozen=True, slots=True)
class FloatWeights:
    """Plain tensors by canonical name, as `Weights`."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    kv_chain: Chain = A32

    def names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def qtensor(self, name: str) -> QTensor:
        return plain(self.tensors[name])

    def activation(self, name: str) -> Chain:
        return A32


class FloatLinear:
    """y = x W^T + b in floats; x rounded to int8 per token first where `activation` says so."""

    kernel_ids: tuple[str, ...] = ()
    wants_rows = False

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Chain) -> None:
        self.weight = weight
        self.bias = bias
        self.rounds = not activation.is_plain

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Activation) -> Tensor:
        assert isinstance(x, Tensor)
        if self.rounds:
            x = dequantize_rows(quantize_rows(x)).to(x.dtype)
        return functional.linear(x, self.weight, self.bias)


class FloatNorm:
    """RMSNorm (Zhang and Sennrich 2019), with the residual added first; the mean is taken in float32."""

    kernel_ids: tuple[str, ...] = ()

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        wide = total.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normal.to(x.dtype) * self.weight, total


class FloatSiluMul:
    kernel_ids: tuple[str, ...] = ()
    nbytes = 0

    def __call__(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


class FloatEmbedding:
    kernel_ids: tuple[str, ...] = ()

    def __init__(self, table: Tensor) -> None:
        self.table = table

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def __call__(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self.table)


class ReferenceLayers:
    """`Layers` in plain torch, computing in `dtype` on `device`; K and V are rounded as `kv` or else the
    weights say.
    """

    def __init__(
        self,
        weights: Weights,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kv: Chain | None = None,
    ) -> None:
        self.weights = weights
        self.kv = kv or weights.kv_chain
        self.dtype = dtype
        self.device = device
        self._stored = frozenset(weights.names())

    @property
    def config(self) -> ModelConfig:
        return self.weights.config

    def _tensor(self, name: str) -> Tensor:
        return self.weights.tensor(name).to(self.device, self.dtype)

    def linear(self, *names: str) -> LinearLayer:
        parts = [self._one_linear(name) for name in names]
        return parts[0] if len(parts) == 1 else SideBySide(parts)

    def _one_linear(self, name: str) -> FloatLinear:
        bias = f"{name}.bias"
        return FloatLinear(
            weight=self._tensor(f"{name}.weight"),
            bias=self._tensor(bias) if bias in self._stored else None,
            activation=self.weights.activation(name),
        )

    def norm(self, name: str, feeds: LinearLayer | None = None) -> FloatNorm:
        return FloatNorm(self._tensor(f"{name}.weight"), self.config.norm_eps)

    def silu_mul(self, feeds: LinearLayer) -> FloatSiluMul:
        return FloatSiluMul()

    def attention(self) -> DenseAttention:
        return DenseAttention(self.config, self.kv)

    def embedding(self) -> FloatEmbedding:
        return FloatEmbedding(self._embedding_table)

    def head(self) -> LinearLayer:
        if not self.config.tied_embeddings:
            return self.linear(HEAD_NAME)
        return FloatLinear(self._embedding_table, None, self.weights.activation(HEAD_NAME))

    @cached_property
    def _embedding_table(self) -> Tensor:
        return self._tensor(f"{EMBEDDING_NAME}.weight")
