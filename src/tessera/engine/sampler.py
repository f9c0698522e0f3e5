"""Logits to tokens. Each row is computed from itself alone: batch-mates cannot change it.

Ties go to the lowest id everywhere. Greedy rows never leave their device; rows that are drawn are handled one
by one in numpy, whose vectorised sorting makes top-k and top-p cheap on a CPU. Top-p is top-k with k
read off the largest weights, and the draw inverts the cumulative distribution in order of ids.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tessera.engine.core import NOT_FINITE
from tessera.engine.rng import uniform
from tessera.engine.sampling_params import SamplingParams

NUCLEUS_GUESS: Final = 1024
"""Largest weights looked at for top-p before all of them are."""

Floats = NDArray[np.float32]


class Draw(NamedTuple):
    """How one row is sampled; `position` is that of the token to be drawn in its sequence."""

    sampling: SamplingParams
    seed: int
    position: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """A token for each row of `logits` (float32 [R, V]), NOT_FINITE where a row holds NaN or infinity.

    -inf is allowed (a token that cannot be drawn) unless a whole row is.
    """
    tokens, best = _best(logits)
    for row, draw in enumerate(draws):
        if not math.isfinite(best[row]):
            tokens[row] = NOT_FINITE
        elif not draw.sampling.greedy:
            tokens[row] = draw_token(logits[row].cpu().numpy(), draw)
    return tokens


def _best(logits: Tensor) -> tuple[list[int], list[float]]:
    """Id and value of each row's largest logit: the first of equals, and NaN if there is one."""
    if logits.device.type == "cpu":  # numpy: torch would wake its threads, and takes ten times as long
        rows = logits.numpy()
        ids = rows.argmax(axis=-1)
        return ids.tolist(), rows[np.arange(len(rows)), ids].tolist()
    values, indices = logits.max(dim=-1)
    return indices.tolist(), values.tolist()


def draw_token(logits: Floats, draw: Draw) -> int:
    """One token from softmax(logits [V] / temperature), filtered by top-k and top-p; -inf is allowed."""
    sampling = draw.sampling
    # Subtracting first keeps tiny temperatures from overflowing: the best token stays at exp(0).
    scale = max(sampling.temperature, float(np.finfo(np.float32).tiny))
    with np.errstate(over="ignore"):  # what overflows is -inf, whose weight is 0
        weights = np.exp((logits - logits.max()) / np.float32(scale))
    kept = None
    if sampling.top_k or sampling.top_p < 1:
        kept = keep_best(weights, sampling.top_k, sampling.top_p)
        weights = weights[kept]
    cumulative = weights.astype(np.float64).cumsum()
    # The first whose cumulative weight exceeds the target; its own weight is therefore above zero.
    target = uniform(draw.seed, draw.position) * cumulative[-1]
    index = int(cumulative.searchsorted(target, side="right"))
    return index if kept is None else int(kept[index])


def keep_best(weights: Floats, top_k: int, top_p: float) -> NDArray[np.intp]:
    """Ids, ascending, of the top k and then the top p of `weights` [V] (not normalised).

    top_k 0 keeps all, top_p 1 keeps all. The last token kept is the one whose weight reaches top_p.
    """
    limit = min(top_k or len(weights), len(weights))
    if top_p < 1:
        total = (weights if limit == len(weights) else _largest(weights, limit)).sum(dtype=np.float64)
        for guess in (min(limit, NUCLEUS_GUESS), limit):
            cumulative = _largest(weights, guess).cumsum(dtype=np.float64)
            reached = int(cumulative.searchsorted(top_p * total))
            if reached < guess:
                break
        # Sums in another order may differ in the last place: never more tokens than there are.
        limit = min(reached + 1, limit)
    threshold = _largest(weights, limit)[-1]
    kept = np.flatnonzero(weights >= threshold)
    surplus = len(kept) - limit
    if surplus == 0:
        return kept
    ties = np.flatnonzero(weights[kept] == threshold)
    return np.delete(kept, ties[-surplus:])


def _largest(weights: Floats, count: int) -> Floats:
    """The `count` largest, largest first."""
    split = len(weights) - count
    return np.sort(np.partition(weights, split)[split:])[::-1]
