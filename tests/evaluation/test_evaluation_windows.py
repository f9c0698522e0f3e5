"""Windows, aligned streams, and a whole window against transformers' loss."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.evaluation.errors import NonFiniteLogitsError, WindowError
from tessera.evaluation.windows import align, cut_windows, dense_logits, score_window
from tessera.layers.reference import FloatWeights
from tessera.models.loader import build_model
from tiny import random_tensors, tiny_config, transformers_model

CONFIG = tiny_config()
TENSORS = random_tensors(CONFIG)


def tokens(count):
    return torch.randint(CONFIG.vocab_size, (count,), generator=torch.Generator().manual_seed(3)).tolist()


def cut(x, sizes):
    return iter(torch.split(x, sizes))


def pieces(total):
    """Random ways to cut `total` rows."""
    return st.lists(st.integers(0, total), max_size=6).map(
        lambda cuts: [b - a for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), total], strict=True)]
    )


@given(pieces(20).flatmap(lambda a: st.tuples(st.just(a), pieces(20))))
def test_align_pairs_every_row_with_its_own(sizes):
    x = torch.arange(20)[:, None]
    # Pieces of a model are never empty.
    a, b = ([size for size in part if size] for part in sizes)
    pairs = list(align(cut(x, a), cut(x + 100, b)))
    assert all(torch.equal(left + 100, right) for left, right in pairs)
    assert torch.cat([left for left, _ in pairs]).flatten().tolist() == list(range(20))


@pytest.mark.parametrize(("count", "limit", "want"), [(10, None, 3), (9, None, 3), (11, 2, 2), (3, 5, 1)])
def test_windows_are_whole_and_do_not_overlap(count, limit, want):
    windows = cut_windows(list(range(count)), 3, limit)
    assert [list(w) for w in windows] == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(want)]


def test_a_text_below_one_window_is_refused():
    with pytest.raises(WindowError, match=r"has 7 tokens.*window of 8"):
        cut_windows(list(range(7)), 8)


def test_a_window_that_predicts_nothing_is_refused():
    with pytest.raises(WindowError, match="window of 1"):
        cut_windows([1, 2, 3], 1)


def test_window_score_is_transformers_loss():
    ids = tokens(300)
    model = dense_logits(build_model(FloatWeights(CONFIG, TENSORS), paged=False))
    score = score_window(ids, model, None)
    batch = torch.tensor([ids])
    with torch.no_grad():
        loss = transformers_model(CONFIG, TENSORS)(batch, labels=batch).loss
    assert score.tokens == 299
    assert score.nll / score.tokens == pytest.approx(float(loss), rel=1e-5)
    assert (score.kl, score.top1) == (0, 1)


def test_reference_is_scored_beside_the_model():
    ids = tokens(100)
    first, second = (
        dense_logits(build_model(FloatWeights(CONFIG, random_tensors(CONFIG, seed)), paged=False))
        for seed in (0, 1)
    )
    both = score_window(ids, first, second)
    assert both.nll == pytest.approx(score_window(ids, first, None).nll)
    assert both.nll_reference == pytest.approx(score_window(ids, second, None).nll)
    assert both.kl_mean > 0.1


def test_broken_logits_are_named():
    def broken(token_ids):
        logits = torch.zeros(len(token_ids), 8)
        logits[5, 3] = torch.nan
        yield from torch.split(logits, 4)

    def fine(token_ids):
        yield torch.zeros(len(token_ids), 8)

    with pytest.raises(NonFiniteLogitsError, match=r"the model .*positions 4 to 7"):
        score_window([1] * 9, broken, fine)
    with pytest.raises(NonFiniteLogitsError, match=r"the reference .*positions 4 to 7"):
        score_window([1] * 9, fine, broken)
