"""One linear layer's weights to codes: to nearest, or by GPTQ on searched ranges."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from tessera.numerics import QTensor, ScaleRangeError, code_dtype, levels_of, quantize
from tessera.numerics.threads import serial
from tessera.quantization.errors import WeightError
from tessera.quantization.linalg import InverseFactor, inverse_factor
from tessera.quantization.ranges import group_losses, search_ranges
from tessera.quantization.round_gptq import activation_order, gptq_codes
from tessera.spec import Chain, Qtile

DAMP: Final = 0.05
"""Fraction of mean(diag H) added to the diagonal (Frantar et al. 2022, section 3.3). More than the usual
0.01, which fits the accidents of a few thousand calibration tokens: errors at other tokens grow."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """Quantized weights, with what it took: the rounding (nearest, gptq), the damping used (0 for none), and
    a note if GPTQ had to fall back on more precision, more damping, or rounding to nearest.
    """

    weight: QTensor
    how: str = "nearest"
    damp: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What rounding needs to know of a layer's inputs, once for all layers that share them.

    hessian float32 [K, K]; order int64 [K], columns by falling diag(H); factor of the damped inverse in that
    order, None where there is none; inverse itself float32 [K, K], in the columns' own order.
    """

    hessian: Tensor
    order: Tensor
    factor: InverseFactor | None
    inverse: Tensor

    @classmethod
    def of(cls, hessian: Tensor) -> Self:
        order = activation_order(hessian)
        factor = inverse_factor(hessian[order][:, order], DAMP)
        inverse = torch.zeros_like(hessian)
        if factor is not None:
            inverse[order.unsqueeze(1), order] = factor.upper.T @ factor.upper
        return cls(hessian, order, factor, inverse)


def round_nearest(weight: Tensor, inputs: Inputs, chain: Chain) -> Rounded:
    """Round to nearest over whole ranges, whatever the inputs."""
    return Rounded(quantize(weight, chain))


def round_gptq(weight: Tensor, inputs: Inputs, chain: Chain) -> Rounded:
    """GPTQ over ranges searched for the output. Without a usable Hessian it rounds to nearest and says so."""
    if inputs.factor is None:
        return Rounded(quantize(weight, chain), note="no usable Hessian: rounded to nearest")
    pattern = chain.steps[0].pattern
    losses = group_losses(inputs.inverse, pattern)
    with serial(weight.numel()):
        params = search_ranges(weight, losses, chain)
        grid = levels_of(chain, params).spread(pattern, tuple(weight.shape))
        codes = gptq_codes(weight, grid, inputs.factor, inputs.order).to(code_dtype(chain.codes))
    rounded = QTensor(Qtile(tuple(weight.shape), chain), codes, params)
    return Rounded(rounded, "gptq", inputs.factor.damp, inputs.factor.note)


Rounding = Callable[[Tensor, Inputs, Chain], Rounded]
"""(weight float32 [N, K], its inputs, chain) -> Rounded."""

ROUNDINGS: Final[dict[str, Rounding]] = {"rtn": round_nearest, "gptq": round_gptq, "qoq": round_gptq}
"""By algorithm of the recipe."""


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Failures of storing a weight, with the tensor's name. Raises WeightError."""
    try:
        yield
    except ScaleRangeError as error:
        raise WeightError(f"{name} cannot be quantized: {error}") from error


def relative_error(weight: Tensor, rounded: QTensor, hessian: Tensor) -> float:
    """Root of the layer's squared output error over its squared output, on the calibration inputs."""
    error = weight - rounded.dequantize()
    norm = float(((weight @ hessian) * weight).sum())
    return (float(((error @ hessian) * error).sum()) / norm) ** 0.5 if norm > 0 else 0.0


def weight_error(weight: Tensor, rounded: QTensor) -> float:
    """Relative Frobenius error of the weights."""
    return float(torch.linalg.norm(weight - rounded.dequantize()) / weight.norm().clamp(min=1e-30))
