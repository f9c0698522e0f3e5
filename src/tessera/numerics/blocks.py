"""Reductions over, and broadcasts from, the blocks of a group pattern."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tessera.spec import WHOLE, Pattern

Reduction = Callable[..., Tensor]
"""A separable reduction called as f(x, dim=…, keepdim=…): torch.amin, torch.amax."""


def reduce_blocks(x: Tensor, pattern: Pattern, reduction: Reduction) -> Tensor:
    """One value per block of `x`, of shape `pattern.counts(x.shape)`.

    A short last block (ragged pattern) is completed by repeating its last element, so the reduction has to
    be one that repeats do not change: minimum or maximum. Raises SpecError where blocks do not divide.
    """
    pattern.counts(x.shape)
    for axis, block in enumerate(pattern.block):
        if block == WHOLE:
            x = reduction(x, dim=axis, keepdim=True)
        elif block > 1:
            x = reduction(split_blocks(x, axis, block), dim=axis + 1)
    return x


def split_blocks(x: Tensor, axis: int, block: int) -> Tensor:
    """Axis of size n as two axes [ceil(n / block), block]; the last element fills up a short last block."""
    size = x.shape[axis]
    if missing := -size % block:
        index = torch.arange(size + missing, device=x.device).clamp_(max=size - 1)
        x = x.index_select(axis, index)
    return x.reshape(*x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1 :])


def spread(values: Tensor, pattern: Pattern, shape: Sequence[int]) -> Tensor:
    """Inverse direction: parameters of shape `pattern.counts(shape)`, broadcastable against `shape`."""
    for axis, (size, block) in enumerate(zip(shape, pattern.block, strict=True)):
        if block > 1:
            repeated = values.unsqueeze(axis + 1).expand(
                *values.shape[: axis + 1], block, *values.shape[axis + 1 :]
            )
            values = repeated.flatten(axis, axis + 1).narrow(axis, 0, size)
    return values
