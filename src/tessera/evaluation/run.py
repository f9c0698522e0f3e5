"""One evaluation: a model through the path that serves it, against a reference in float32."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tessera.engine.llm import LLM
from tessera.evaluation.errors import TokenizerMismatchError, WindowError
from tessera.evaluation.metrics import Interval, Score, bootstrap_delta_log_ppl
from tessera.evaluation.windows import PromptLogits, cut_windows, dense_logits, score_window
from tessera.formats import Checkpoint, open_checkpoint
from tessera.kernels.registry import runs
from tessera.models.loader import build_model

Progress = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]
"""(what, number of windows) -> context whose value is called after each window with how it stands."""


@contextmanager
def silent(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """No progress."""
    yield lambda _: None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The model against its reference on the same tokens.

    kl_mean is KL(reference || model) in nats per token, top1 the share of tokens on which both rank the same
    id first, delta_log_ppl the difference of log perplexities with its 95 % interval (None for one window).
    """

    reference: str
    ppl_reference: float
    kl_mean: float
    top1: float
    delta_log_ppl: float
    delta_log_ppl_ci95: Interval | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of `evaluate`. `path` is "served" (kernels, paged cache) or "reference" (plain torch, float32).

    `modules` gives the bits per weight, parameters included, of every tensor that is stored quantized;
    `bits_per_weight` those of the whole model.
    """

    model: str
    recipe: str | None
    path: str
    ppl: float
    comparison: Comparison | None
    text_sha256: str
    window: int
    windows: int
    tokens: int
    kernels: tuple[str, ...]
    bits_per_weight: float
    modules: dict[str, float]

    def to_json(self) -> dict[str, object]:
        """One flat object; what a comparison would say is null without a reference."""
        names = Comparison.__dataclass_fields__
        flat = asdict(self)
        compared = flat.pop("comparison") or dict.fromkeys(names)
        return flat | compared


def evaluate(
    model: str | Path,
    text: str,
    *,
    reference: str | Path | None = None,
    window: int = 2048,
    limit: int | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Score `model` on `text`, taken as one string without a BOS token, in non-overlapping windows.

    Tokens 2..L of each window of L are predicted. With a `reference`, the model runs as it is served and the
    reference densely in float32. Alone, a quantized model runs as it is served, another one densely.
    Raises WindowError, TokenizerMismatchError, NonFiniteLogitsError, and what opening and building raise.
    """
    checkpoint = open_checkpoint(model)
    source = None if reference is None else open_checkpoint(reference)
    _check_context(window, checkpoint, source)
    windows = cut_windows(_encode(text, checkpoint, source), window, limit)
    served = reference is not None or checkpoint.recipe is not None
    before = runs.copy()
    ours = _served(model, window) if served else _dense(checkpoint)
    scores = _score(windows, ours, None if source is None else _dense(source), progress)
    total = sum(scores, Score())
    tiles = {name: checkpoint.tile(name) for name in checkpoint.names()}
    return Evaluation(
        model=str(model),
        recipe=None if checkpoint.recipe is None else str(checkpoint.recipe),
        path="served" if served else "reference",
        ppl=total.ppl,
        comparison=None if reference is None else _comparison(str(reference), total, scores),
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        window=window,
        windows=len(windows),
        tokens=total.tokens,
        kernels=tuple(sorted((runs - before).keys())),
        bits_per_weight=sum(t.bits for t in tiles.values()) / sum(t.numel for t in tiles.values()),
        modules={name: float(t.bits_per_element) for name, t in tiles.items() if not t.chain.is_plain},
    )


def _served(model: str | Path, window: int) -> PromptLogits:
    return LLM(model, max_model_len=window, max_num_seqs=1, kv_tokens=window).prompt_logits


def _dense(checkpoint: Checkpoint) -> PromptLogits:
    return dense_logits(build_model(checkpoint, paged=False))


def _score(
    windows: Sequence[Sequence[int]],
    ours: PromptLogits,
    reference: PromptLogits | None,
    progress: Progress,
) -> list[Score]:
    scores: list[Score] = []
    with progress("eval", len(windows)) as advance:
        for token_ids in windows:
            scores.append(score_window(token_ids, ours, reference))
            advance(f"ppl {sum(scores, Score()).ppl:.3f}")
    return scores


def _comparison(reference: str, total: Score, scores: Sequence[Score]) -> Comparison:
    return Comparison(
        reference=reference,
        ppl_reference=total.ppl_reference,
        kl_mean=total.kl_mean,
        top1=total.top1,
        delta_log_ppl=total.delta_log_ppl,
        delta_log_ppl_ci95=bootstrap_delta_log_ppl(scores),
    )


def _check_context(window: int, *checkpoints: Checkpoint | None) -> None:
    limits = [c.config.max_position for c in checkpoints if c is not None]
    if window > min(limits):
        raise WindowError(
            f"a window of {window} tokens is longer than the context of {min(limits)}", param="window"
        )


def _encode(text: str, checkpoint: Checkpoint, reference: Checkpoint | None) -> list[int]:
    token_ids = checkpoint.tokenizer().encode(text)
    if reference is not None and reference.tokenizer().encode(text) != token_ids:
        raise TokenizerMismatchError(
            "model and reference cut the text into different tokens: compare a model with the one it was "
            "quantized from",
            param="reference",
        )
    return token_ids
