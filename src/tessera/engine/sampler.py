"""Logits to tokens. Each row is computed from itself alone: batch-mates cannot change it.

Ties go to the lowest id everywhere. Nothing of the vocabulary's size is sorted: top-p is top-k with k read
off the largest probabilities, and the draw inverts the cumulative distribution in order of ids.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tessera.engine.core import NOT_FINITE
from tessera.engine.rng import uniform
from tessera.engine.sampling_params import SamplingParams

NUCLEUS_GUESS: Final = 1024
"""Largest probabilities looked at for top-p before all of them are."""


class Draw(NamedTuple):
    """How one row is sampled; `position` is that of the token to be drawn in its sequence."""

    sampling: SamplingParams
    seed: int
    position: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """A token for each row of `logits` (float32 [R, V]), NOT_FINITE where a row is not all below infinity.

    -inf is allowed (a token that cannot be drawn) unless a whole row is.
    """
    best, ids = logits.max(dim=-1)  # NaN counts as the largest; of equals the first
    rows = [row for row, draw in enumerate(draws) if not draw.sampling.greedy]
    if rows:
        chosen = logits if len(rows) == len(draws) else logits[rows]
        drawn = _draw(chosen, best[rows], [draws[row] for row in rows])
        ids[rows] = drawn
    tokens: list[int] = torch.where(best.isfinite(), ids, NOT_FINITE).tolist()
    return tokens


def _draw(logits: Tensor, best: Tensor, draws: Sequence[Draw]) -> Tensor:
    """int64 [R]: tokens drawn from softmax(logits / temperature), filtered by top-k and top-p."""
    temperature = logits.new_tensor([draw.sampling.temperature for draw in draws])
    temperature.clamp_(min=torch.finfo(temperature.dtype).tiny)
    # Subtracting first keeps tiny temperatures from overflowing: the best token stays at exp(0).
    weights = ((logits - best[:, None]) / temperature[:, None]).exp_()
    weights = weights.double()
    filtered = [row for row, draw in enumerate(draws) if draw.sampling.top_k or draw.sampling.top_p < 1]
    for row in filtered:
        weights[row] = keep_best(weights[row], draws[row].sampling.top_k, draws[row].sampling.top_p)
    cumulative = weights.cumsum(dim=-1)
    points = [uniform(draw.seed, draw.position) for draw in draws]
    targets = cumulative[:, -1] * torch.tensor(points, dtype=torch.float64, device=logits.device)
    # The first id whose cumulative weight exceeds the target; its own weight is therefore above zero.
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]


def keep_best(weights: Tensor, top_k: int, top_p: float) -> Tensor:
    """`weights` (float64 [V], not normalised) with zeros outside the top k and then the top p of them.

    top_k 0 keeps all, top_p 1 keeps all. The last token kept is the one whose weight reaches top_p.
    """
    vocab = weights.shape[0]
    limit = min(top_k or vocab, vocab)
    guess = limit if top_p == 1 else min(limit, NUCLEUS_GUESS)
    largest = weights.topk(guess).values
    if top_p < 1:
        total = weights.sum() if limit == vocab else weights.topk(limit).values.sum()
        if guess < limit and largest.sum() < top_p * total:
            largest = weights.topk(limit).values
        # Sums in another order may differ in the last place: never more tokens than there are.
        reached = int(torch.searchsorted(largest.cumsum(dim=0), top_p * total))
        largest = largest[: min(reached, largest.shape[0] - 1) + 1]
    threshold = largest[-1]
    above = weights > threshold
    ties = weights == threshold
    room = largest.shape[0] - above.sum()
    return weights * (above | (ties & (ties.cumsum(dim=0) <= room)))
