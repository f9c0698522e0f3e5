"""KL, perplexity, agreement and the bootstrap on data whose answers are known."""

import math

import numpy as np
import pytest
import torch

from tessera.evaluation.metrics import ROWS, Score, bootstrap_delta_log_ppl, compare


def random_pair(rows=3, vocab=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, vocab, generator=generator)
    reference = logits + torch.randn(rows, vocab, generator=generator)
    return logits, reference, torch.randint(vocab, (rows,), generator=generator)


def test_sums_equal_float64_definitions():
    logits, reference, targets = random_pair(rows=2 * ROWS + 7)
    score = compare(logits, reference, targets)
    q, p = (np.asarray(x.double().softmax(dim=-1)) for x in (logits, reference))
    at = (np.arange(len(targets)), targets.numpy())
    assert score.tokens == len(targets)
    assert score.nll == pytest.approx(-np.log(q[at]).sum(), rel=1e-6)
    assert score.nll_reference == pytest.approx(-np.log(p[at]).sum(), rel=1e-6)
    assert score.kl == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5)
    assert score.agree == int((q.argmax(1) == p.argmax(1)).sum())
    assert 0 < score.agree < score.tokens


def test_kl_has_the_direction_reference_to_model():
    sure = torch.tensor([[10.0, 0.0]])
    unsure = torch.zeros(1, 2)
    target = torch.zeros(1, dtype=torch.int64)
    forward = compare(unsure, sure, target).kl_mean
    backward = compare(sure, unsure, target).kl_mean
    assert forward == pytest.approx(math.log(2), abs=1e-3)
    assert backward == pytest.approx(5 - math.log(2), abs=1e-3)


def test_a_model_equals_itself():
    logits, _, targets = random_pair()
    score = compare(logits, logits.clone(), targets)
    assert (score.kl, score.top1, score.delta_log_ppl) == (0, 1, 0)


def test_adding_a_constant_to_a_row_changes_nothing():
    logits, reference, targets = random_pair()
    shifted = compare(logits + 1000, reference - 1000, targets)
    plain = compare(logits, reference, targets)
    assert shifted.kl == pytest.approx(plain.kl, rel=1e-3)
    assert shifted.nll == pytest.approx(plain.nll, rel=1e-3)


def test_uniform_logits_have_the_vocabulary_as_perplexity():
    score = compare(torch.zeros(5, 40), torch.zeros(5, 40), torch.arange(5))
    assert score.ppl == pytest.approx(40)


def test_scores_add_field_by_field():
    logits, reference, targets = random_pair(rows=10)
    whole = compare(logits, reference, targets)
    parts = compare(logits[:4], reference[:4], targets[:4]) + compare(logits[4:], reference[4:], targets[4:])
    assert parts.tokens == whole.tokens
    assert parts.nll == pytest.approx(whole.nll)
    assert parts.kl == pytest.approx(whole.kl)
    assert parts.agree == whole.agree


def gaps(values, tokens=100):
    return [Score(tokens, nll=tokens * (3 + v), nll_reference=tokens * 3) for v in values]


def test_interval_of_many_windows_is_the_normal_one():
    values = np.random.default_rng(1).normal(0.1, 0.02, 400)
    interval = bootstrap_delta_log_ppl(gaps(values))
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_pairing_removes_what_windows_have_in_common():
    hard = np.random.default_rng(2).normal(3, 1, 30)
    scores = [Score(100, nll=100 * (h + 0.05), nll_reference=100 * h) for h in hard]
    interval = bootstrap_delta_log_ppl(scores)
    assert interval.low == pytest.approx(0.05)
    assert interval.high == pytest.approx(0.05)


def test_one_window_has_no_interval():
    assert bootstrap_delta_log_ppl(gaps([0.1])) is None


def test_bootstrap_is_reproducible():
    scores = gaps([0.1, 0.3, 0.2, 0.5])
    assert bootstrap_delta_log_ppl(scores) == bootstrap_delta_log_ppl(scores)
