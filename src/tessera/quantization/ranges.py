"""Ranges of groups chosen for the layer's output, not for the weights alone."""

from collections.abc import Sequence
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


def search_ranges(weight: Tensor, losses: Sequence[Tensor], chain: Chain) -> Params:
    """Parameters of `chain` for `weight` float32 [N, K] with each group's range shrunk as serves it best.

    `losses` holds one symmetric matrix per group (`group_losses`): rounding errors d of its columns cost
    d^T M d. The whole range is among the candidates, so by this loss no group does worse than rounding to
    nearest.
    """
    parts = [_best_shrink(rows, losses, chain) for rows in row_chunks(weight, ROWS)]
    return fit(weight, chain, torch.cat(parts))


def group_losses(inverse: Tensor, pattern: Pattern) -> list[Tensor]:
    """What errors of one group cost once all other columns have done their best to compensate them.

    With H split into the group g and the rest r, that is the Schur complement H_gg - H_gr H_rr^-1 H_rg, the
    inverse of the group's block of H^-1, which is `inverse` float32 [K, K]. Closer to what GPTQ leaves than
    H_gg itself.
    """
    columns = len(inverse)
    size = columns if pattern.block[1] == WHOLE else pattern.block[1]
    blocks = (inverse[i : i + size, i : i + size] for i in range(0, columns, size))
    return [torch.linalg.inv(block.double()).float() for block in blocks]


def _best_shrink(weight: Tensor, losses: Sequence[Tensor], chain: Chain) -> Tensor:
    """The best of SHRINKS for every block, float32 of the shape of the first step's parameters."""
    pattern = chain.steps[0].pattern
    counts = pattern.counts(weight.shape)
    lowest = torch.full(counts, torch.inf)
    best = torch.ones(counts)
    for shrink in SHRINKS:
        grid = levels_of(chain, fit(weight, chain, shrink)).spread(pattern, tuple(weight.shape))
        loss = _error_losses(weight - grid.value(grid.nearest(weight)), losses)
        best = torch.where(loss < lowest, shrink, best)
        lowest = torch.minimum(loss, lowest)
    return best


def _error_losses(error: Tensor, losses: Sequence[Tensor]) -> Tensor:
    """d^T M d of every row and group, float32 [N, G]."""
    parts = torch.split(error, [len(m) for m in losses], dim=1)
    return torch.stack([((part @ m) * part).sum(dim=1) for part, m in zip(parts, losses, strict=True)], dim=1)
