"""Rotary position embedding (Su et al. 2021), half-split form: dimension i turns with i + D/2."""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from tessera.numerics.errors import RopeKindError
from tessera.spec import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair, float32 [D / 2]. Raises RopeKindError for an unknown kind."""
    if rope.kind not in _SCALING:
        raise RopeKindError(f"rotary embedding of kind {rope.kind!r}: known are {', '.join(_SCALING)}")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return _SCALING[rope.kind](1.0 / rope.theta**exponents, rope)


def rope_tables(rope: RopeConfig, head_dim: int, max_position: int) -> tuple[Tensor, Tensor]:
    """(cos, sin), float32 [max_position, D / 2], of position * frequency."""
    angles = torch.arange(max_position, dtype=torch.float32).outer(inverse_frequencies(rope, head_dim))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [T, heads, D] turned by tables [T, D / 2] gathered at each token's position."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _linear(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    return frequencies / rope.factor


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: slow pairs are slowed by `factor`, fast ones kept, those between blended linearly in the
    number of turns they make over the original context.
    """
    wavelength = 2 * math.pi / frequencies
    turns = rope.original_max_position / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    slow = turns < rope.low_freq_factor
    fast = turns > rope.high_freq_factor
    return torch.where(slow, frequencies / rope.factor, torch.where(fast, frequencies, blended))


_SCALING: Final[dict[str, Callable[[Tensor, RopeConfig], Tensor]]] = {
    "default": lambda frequencies, _: frequencies,
    "linear": _linear,
    "llama3": _llama3,
}
