"""Ranges of groups chosen for the layer's output, not for the weights alone."""

from typing import Final

import torch
from torch import Tensor

from tessera.numerics.fit import Params, fit
from tessera.numerics.levels import levels_of
from tessera.quantization.chunks import row_chunks
from tessera.spec import WHOLE, Chain, Pattern

SHRINKS: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
"""Fractions of a group's range tried; the largest wins a tie."""

ROWS: Final = 1024
"""Rows searched at a time, which bounds memory."""


def search_ranges(weight: Tensor, hessian: Tensor, chain: Chain) -> Params:
    """Parameters of `chain` for `weight` float32 [N, K] with each group's range shrunk as serves it best.

    A group's loss is d^T H_gg d: rounding error d of its columns, H_gg the group's own block of the Hessian
    (cross terms with other groups are what GPTQ takes care of afterwards). The whole range is among the
    candidates, so by this loss no group does worse than rounding to nearest.
    """
    if len(weight) > ROWS:
        parts = [_best_shrink(rows, hessian, chain) for rows in row_chunks(weight, ROWS)]
        return fit(weight, chain, torch.cat(parts))
    return fit(weight, chain, _best_shrink(weight, hessian, chain))


def _best_shrink(weight: Tensor, hessian: Tensor, chain: Chain) -> Tensor:
    """The best of SHRINKS for every block, float32 of the shape of the first step's parameters."""
    pattern = chain.steps[0].pattern
    counts = pattern.counts(weight.shape)
    lowest = torch.full(counts, torch.inf)
    best = torch.ones(counts)
    for shrink in SHRINKS:
        grid = levels_of(chain, fit(weight, chain, shrink)).spread(pattern, tuple(weight.shape))
        loss = _group_losses(weight - grid.value(grid.nearest(weight)), hessian, pattern)
        best = torch.where(loss < lowest, shrink, best)
        lowest = torch.minimum(loss, lowest)
    return best


def _group_losses(error: Tensor, hessian: Tensor, pattern: Pattern) -> Tensor:
    """d^T H_gg d of every row and group, float32 [N, G]."""
    size = error.shape[1] if pattern.block[1] == WHOLE else pattern.block[1]
    losses = []
    for start in range(0, error.shape[1], size):
        part = error[:, start : start + size]
        block = hessian[start : start + size, start : start + size]
        losses.append(((part @ block) * part).sum(dim=1))
    return torch.stack(losses, dim=1)
