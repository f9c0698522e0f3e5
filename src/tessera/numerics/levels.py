"""The values a block can take, and the nearest of them.

Every affine chain, QoQ's two levels included, is for one block an evenly spaced set of values

    value = code * step + offset        code in low..high

Rounding to nearest, GPTQ and range searches all work on that and need not know the chain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tessera.numerics.blocks import spread
from tessera.numerics.errors import NoEncoderError
from tessera.numerics.progressive import code_bounds
from tessera.numerics.qtensor import QTensor, code_dtype
from tessera.spec import Chain, Grid, Pattern


@dataclass(frozen=True, slots=True)
class Levels:
    """float32 tensors with one entry per block, in the shape of the first step's parameters."""

    step: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor

    def spread(self, pattern: Pattern, shape: tuple[int, ...]) -> "Levels":
        """The same with entries that broadcast against data of `shape`."""
        return Levels(*(spread(x, pattern, shape) for x in (self.step, self.offset, self.low, self.high)))

    def nearest(self, x: Tensor) -> Tensor:
        """Nearest codes, float32, of `x` that broadcasts against the entries; ties to even codes.

        NaN gives NaN: the caller decides what that means.
        """
        return ((x - self.offset) * self.step.reciprocal()).round().clamp(self.low, self.high)

    def value(self, codes: Tensor) -> Tensor:
        """Values of float32 `codes`."""
        return codes * self.step + self.offset


def levels_of(chain: Chain, params: Mapping[str, QTensor]) -> Levels:
    """Levels of every block. Raises NoEncoderError for chains that are not affine in the code."""
    ops = tuple(step.op for step in chain.steps)
    if ops not in _LEVELS or not isinstance(chain.codes, Grid):
        raise NoEncoderError(f"{chain} is not affine in its codes")
    values = [params[p.name].dequantize() for p in chain.params()]
    return _LEVELS[ops](chain.codes, values)


def encode(x: Tensor, chain: Chain, params: Mapping[str, QTensor]) -> Tensor:
    """Nearest codes of `x` for given parameters, of `code_dtype(chain.codes)`.

    NaN becomes code 0 or the nearest to it: its scale is not finite, so the decoded value is not either.
    """
    assert isinstance(chain.codes, Grid)
    grid = levels_of(chain, params).spread(chain.steps[0].pattern, tuple(x.shape))
    return grid.nearest(x.float()).nan_to_num_(0.0).to(code_dtype(chain.codes))


def _scale(codes: Grid, params: list[Tensor]) -> Levels:
    (scale,) = params
    return Levels(scale, torch.zeros_like(scale), *_full_range(codes, scale))


def _affine_zero(codes: Grid, params: list[Tensor]) -> Levels:
    scale, zero = params
    return Levels(scale, -zero * scale, *_full_range(codes, scale))


def _affine_min(codes: Grid, params: list[Tensor]) -> Levels:
    scale, minimum = params
    return Levels(scale, minimum, *_full_range(codes, scale))


def _progressive(codes: Grid, params: list[Tensor]) -> Levels:
    group_scale, group_zero, scale = params
    step = group_scale * scale
    low, high = code_bounds(group_scale, group_zero)
    return Levels(step, -group_zero * step, low.clamp(min=codes.low), high.clamp(max=codes.high))


def _full_range(codes: Grid, like: Tensor) -> tuple[Tensor, Tensor]:
    return torch.full_like(like, codes.low), torch.full_like(like, codes.high)


_LEVELS: Final[dict[tuple[str, ...], Callable[[Grid, list[Tensor]], Levels]]] = {
    ("scale",): _scale,
    ("affine_zero",): _affine_zero,
    ("affine_min",): _affine_min,
    ("affine_zero", "scale"): _progressive,
}
