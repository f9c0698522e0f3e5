"""Perplexity, KL divergence, top-1 agreement, and a paired bootstrap over windows.

L tokens of a window, of which 2..L are predicted (L - 1 rows); V the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import exp
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

ROWS: Final = 256
"""Rows compared at once: bounds memory to a few times ROWS x V floats."""

RESAMPLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over predicted tokens. Natural logarithms.

    nll            -log p(token) of the model measured
    nll_reference  the same of the reference
    kl             KL(reference || model) over the whole vocabulary
    agree          tokens where both rank the same id first
    """

    tokens: int = 0
    nll: float = 0.0
    nll_reference: float = 0.0
    kl: float = 0.0
    agree: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def ppl(self) -> float:
        return exp(self.nll / self.tokens)

    @property
    def ppl_reference(self) -> float:
        return exp(self.nll_reference / self.tokens)

    @property
    def kl_mean(self) -> float:
        """Nats per token."""
        return self.kl / self.tokens

    @property
    def top1(self) -> float:
        """Share of tokens, 0 to 1."""
        return self.agree / self.tokens

    @property
    def delta_log_ppl(self) -> float:
        """log ppl of the model minus log ppl of the reference."""
        return (self.nll - self.nll_reference) / self.tokens


def compare(logits: Tensor, reference: Tensor, targets: Tensor) -> Score:
    """logits, reference [R, V] of the same positions, targets int64 [R] the tokens that follow.

    Softmax in float32 over `ROWS` rows at a time; sums in float64.
    """
    total = Score()
    parts = zip(*(torch.split(x, ROWS) for x in (logits, reference, targets)), strict=True)
    for ours, theirs, target in parts:
        q = torch.log_softmax(ours.float(), dim=-1)
        p = torch.log_softmax(theirs.float(), dim=-1)
        total += Score(
            tokens=len(target),
            nll=_negative_sum(q.gather(1, target[:, None])),
            nll_reference=_negative_sum(p.gather(1, target[:, None])),
            kl=float((p.exp() * (p - q)).sum(dim=-1).double().sum()),
            agree=int((q.argmax(dim=-1) == p.argmax(dim=-1)).sum()),
        )
    return total


def _negative_sum(x: Tensor) -> float:
    return -float(x.double().sum())


@dataclass(frozen=True, slots=True)
class Interval:
    """Two-sided 95 % confidence interval."""

    low: float
    high: float


def bootstrap_delta_log_ppl(windows: Sequence[Score], seed: int = 0) -> Interval | None:
    """Percentile bootstrap (Efron 1979) of `delta_log_ppl`, resampling windows: tokens of one text are not
    independent, windows nearly are. Model and reference stay paired. None for fewer than two windows.
    """
    if len(windows) < 2:
        return None
    gaps = np.array([w.nll - w.nll_reference for w in windows])
    tokens = np.array([w.tokens for w in windows])
    rng = np.random.default_rng(seed)
    deltas = np.array([gaps[i].sum() / tokens[i].sum() for i in _resamples(rng, len(windows))])
    low, high = np.quantile(deltas, (0.025, 0.975))
    return Interval(float(low), float(high))


def _resamples(rng: np.random.Generator, count: int) -> Iterator[np.ndarray]:
    for _ in range(RESAMPLES):
        yield rng.integers(count, size=count)
