"""Scoring a text window by window: two models on the same tokens, neither held in memory beyond a window."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite

import torch
from torch import Tensor

from tessera.evaluation.errors import NonFiniteLogitsError, WindowError
from tessera.evaluation.metrics import ROWS, Score, compare
from tessera.layers.dense import dense_metadata
from tessera.models.types import Model

PromptLogits = Callable[[Sequence[int]], Iterator[Tensor]]
"""Token ids -> pieces [n, V] of the logits after each of them, in order. `LLM.prompt_logits` is this."""


def dense_logits(model: Model) -> PromptLogits:
    """A model built with `paged=False`, as `PromptLogits`."""

    def logits(token_ids: Sequence[int]) -> Iterator[Tensor]:
        hidden = model.forward(torch.tensor(token_ids), dense_metadata([len(token_ids)]))
        for rows in torch.split(hidden, ROWS):
            yield model.logits(rows)

    return logits


def cut_windows(token_ids: Sequence[int], window: int, limit: int | None = None) -> list[Sequence[int]]:
    """Non-overlapping windows of exactly `window` tokens from the start, at most `limit`.

    What is left over at the end is not used. Raises WindowError for a window below 2 or a text below one.
    """
    if window < 2:
        raise WindowError(f"a window of {window} predicts nothing: take 2 or more", param="window")
    count = len(token_ids) // window
    if count == 0:
        raise WindowError(
            f"the text has {len(token_ids)} tokens, less than one window of {window}: give a longer text or "
            "a smaller --window",
            param="window",
        )
    count = count if limit is None else min(count, limit)
    return [token_ids[i * window : (i + 1) * window] for i in range(count)]


def score_window(token_ids: Sequence[int], model: PromptLogits, reference: PromptLogits | None) -> Score:
    """Predictions of tokens 2..L of one window, with nothing before it. Without a reference the model is
    its own, so KL is 0 and agreement 1.

    Raises NonFiniteLogitsError.
    """
    targets = torch.tensor(token_ids[1:])
    ours = model(token_ids)
    pairs = ((piece, piece) for piece in ours) if reference is None else align(ours, reference(token_ids))
    total, start = Score(), 0
    for logits, theirs in pairs:
        # The last token's logits predict what is outside the window.
        rows = min(len(logits), len(targets) - start)
        part = compare(logits[:rows], theirs[:rows], targets[start : start + rows])
        _check_finite(part, start)
        total += part
        start += rows
    return total


def align(a: Iterator[Tensor], b: Iterator[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Two streams of rows, cut at different places, as pairs of pieces of equal length."""
    x = y = torch.empty(0)
    while True:
        x = x if len(x) else next(a, x)
        y = y if len(y) else next(b, y)
        rows = min(len(x), len(y))
        if rows == 0:
            assert len(x) == len(y), "both streams hold the same rows"
            return
        yield x[:rows], y[:rows]
        x, y = x[rows:], y[rows:]


def _check_finite(part: Score, start: int) -> None:
    for name, value in (("model", part.nll), ("reference", part.nll_reference)):
        if not isfinite(value):
            raise NonFiniteLogitsError(
                f"the {name} put out NaN or infinite logits among positions {start} to "
                f"{start + part.tokens - 1} of a window; check its weights with `tessera doctor`"
            )
