"""The reference: a model's layers in plain torch, no kernels and no pages.

It computes what the formats of the weights say: linear layers use dequantized weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tessera.kernels.types import Activation
from tessera.layers.dense import DenseAttention
from tessera.layers.types import LinearLayer, Weights
from tessera.numerics.qtensor import QTensor
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
        return QTensor.plain(self.tensors[name])

    def activation(self, name: str) -> Chain:
        return A32


class FloatLinear:
    """y = x W^T + b in floats."""

    kernel_ids: tuple[str, ...] = ()
    wants_rows = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Activation) -> Tensor:
        assert isinstance(x, Tensor)
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
    """`Layers` in plain torch. `dtype` converts the weights; None keeps them as they are."""

    def __init__(self, weights: Weights, dtype: torch.dtype | None = None) -> None:
        self.weights = weights
        self.config = weights.config
        self.dtype = dtype

    def _tensor(self, name: str) -> Tensor:
        return self.weights.tensor(name).to(self.dtype)

    def linear(self, *names: str) -> FloatLinear:
        weight = torch.cat([self._tensor(f"{name}.weight") for name in names])
        biased = f"{names[0]}.bias" in self.weights.names()
        bias = torch.cat([self._tensor(f"{name}.bias") for name in names]) if biased else None
        return FloatLinear(weight, bias)

    def norm(self, name: str, feeds: LinearLayer | None = None) -> FloatNorm:
        return FloatNorm(self._tensor(f"{name}.weight"), self.config.norm_eps)

    def silu_mul(self, feeds: LinearLayer) -> FloatSiluMul:
        return FloatSiluMul()

    def attention(self) -> DenseAttention:
        return DenseAttention(self.config)
