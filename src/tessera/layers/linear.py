"""Linear layers bound to kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.kernels.ops import LINEAR, QUANTIZE_ROWS, LinearProblem, RowsProblem
from tessera.kernels.types import Activation
from tessera.layers.target import Target
from tessera.layers.types import LinearLayer
from tessera.numerics.qtensor import QTensor, concat
from tessera.spec import AlgebraError, Chain, LinearSpec


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """What one linear layer is stored as: weight [N, K], bias [N] or None, input format."""

    weight: QTensor
    bias: Tensor | None
    activation: Chain


class Linear:
    """y = x W^T + b by the kernel its formats select. An int8 kernel's float rows are quantized here."""

    def __init__(self, target: Target, stored: LinearWeights) -> None:
        n, k = stored.weight.tile.shape
        spec = LinearSpec(
            out_features=n,
            in_features=k,
            weight=stored.weight.tile.chain,
            activation=stored.activation,
            output=target.float_type,
            bias=stored.bias is not None,
        )
        problem = LinearProblem(target.device, spec)
        self._bound = LINEAR.select(problem).bind(problem, stored.weight, stored.bias)
        self.wants_rows = not stored.activation.is_plain
        self.nbytes = self._bound.nbytes
        self.kernel_ids: tuple[str, ...] = (self._bound.kernel_id,)
        if self.wants_rows:
            rows = RowsProblem(target.device, k, target.dtype, quantize=True)
            kernel = QUANTIZE_ROWS.select(rows)
            self._quantize = kernel.bind(rows)
            self.kernel_ids += (kernel.id,)

    def __call__(self, x: Activation) -> Tensor:
        if self.wants_rows and isinstance(x, Tensor):
            x = self._quantize(x)
        return self._bound(x)


class SideBySide:
    """Layers of one input whose formats do not join: run apart, outputs concatenated."""

    def __init__(self, parts: Sequence[LinearLayer]) -> None:
        self.parts = parts
        self.wants_rows = all(part.wants_rows for part in parts)
        self.nbytes = sum(part.nbytes for part in parts)
        self.kernel_ids = tuple(dict.fromkeys(i for part in parts for i in part.kernel_ids))

    def __call__(self, x: Activation) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def fuse(target: Target, parts: Sequence[LinearWeights]) -> Linear | SideBySide:
    """One GEMM for all parts, or one each where their chains or input formats differ."""
    joined = _join(parts)
    return SideBySide([Linear(target, part) for part in parts]) if joined is None else Linear(target, joined)


def _join(parts: Sequence[LinearWeights]) -> LinearWeights | None:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if any(part.activation != first.activation for part in parts):
        return None
    try:
        weight = concat([part.weight for part in parts])
    except AlgebraError:
        return None
    return LinearWeights(weight, _join_bias(parts), first.activation)


def _join_bias(parts: Sequence[LinearWeights]) -> Tensor | None:
    """Biases in a row; a part without one counts as zeros."""
    like = next((part.bias for part in parts if part.bias is not None), None)
    if like is None:
        return None
    rows = [part.weight.tile.shape[0] for part in parts]
    zeros = like.new_zeros
    return torch.cat(
        [zeros(n) if part.bias is None else part.bias for n, part in zip(rows, parts, strict=True)]
    ).float()
