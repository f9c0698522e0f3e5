import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.core import NOT_FINITE
from tessera.engine.rng import uniform
from tessera.engine.sampler import Draw, keep_best, sample
from tessera.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0)


def draws(params, count):
    return [Draw(params, seed=5, position=position) for position in range(count)]


def reference_kept(weights, top_k, top_p):
    """Ids kept, by sorting: top k by (weight, lowest id), then the fewest of them that reach top_p."""
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    order = order[: top_k or len(order)]
    total, kept, mass = math.fsum(weights[i] for i in order), [], 0.0
    for token in order:
        kept.append(token)
        mass += weights[token]
        if mass >= top_p * total:
            break
    return set(kept)


def test_uniform_is_splitmix64():
    # Stream of SplitMix64 from state 0: its second output, 0x6E789E6AA1B965F4, seeds what is drawn here.
    start = 0xE220A8397B1DCDAF  # first output from state 0, so uniform(0, n) is output n of that state
    state, outputs = start, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        outputs.append(((z ^ (z >> 31)) >> 12) / 2**52)
    assert [uniform(0, position) for position in range(3)] == outputs


def test_uniform_is_flat_over_positions_and_over_seeds():
    for values in ([uniform(3, n) for n in range(4000)], [uniform(n, 3) for n in range(4000)]):
        counts = torch.histc(torch.tensor(values), 16, 0, 1)
        chi_square = ((counts - 250) ** 2 / 250).sum()
        assert chi_square < 40  # 15 degrees of freedom: P = 5e-4
        assert all(0 <= value < 1 for value in values)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**20))
def test_uniform_takes_any_seed(seed, position):
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_greedy_takes_the_lowest_id_of_equals():
    logits = torch.zeros(3, 5000)
    logits[1, [77, 4000]] = 2.0
    logits[2, 4999] = 1.0
    assert sample(logits, draws(GREEDY, 3)) == [0, 77, 4999]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_k=4), SamplingParams(top_p=0.5)])
def test_broken_logits_are_reported_for_their_row_alone(bad, params):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    clean = sample(logits, draws(params, 3))
    logits[1, 20] = bad
    assert sample(logits, draws(params, 3)) == [clean[0], NOT_FINITE, clean[2]]
    logits[1] = float("-inf")
    assert sample(logits, draws(params, 3))[1] == NOT_FINITE


def test_minus_infinity_is_never_drawn():
    logits = torch.full((200, 40), float("-inf"))
    logits[:, [3, 30]] = 0.0
    assert set(sample(logits, draws(SamplingParams(), 200))) == {3, 30}


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-3])
def test_tiny_temperature_is_greedy(temperature):
    logits = torch.randn(20, 100, generator=torch.Generator().manual_seed(2)) * 30
    params = SamplingParams(temperature=temperature)
    assert sample(logits, draws(params, 20)) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.7),
        SamplingParams(temperature=2.0, top_k=6, top_p=0.8),
    ],
)
def test_frequencies_follow_the_filtered_softmax(params):
    row = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.7, 1.9, -3.0, 0.3])
    weights = (row.double() / params.temperature).softmax(0)
    kept = reference_kept(weights.tolist(), params.top_k, params.top_p)
    mask = torch.tensor([index in kept for index in range(8)])
    expected = torch.where(mask, weights, 0) / weights[mask].sum()
    count = 6000
    tokens = torch.tensor(sample(row.expand(count, 8), draws(params, count)))
    observed = torch.bincount(tokens, minlength=8).double() / count
    assert not observed[~mask].any()
    # Four standard deviations of a binomial share, at every token.
    assert ((observed - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30).filter(any),
    st.integers(0, 40),
    st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.999, 1.0]),
)
def test_filters_keep_what_sorting_keeps(levels, top_k, top_p):
    weights = [2.0**level if level else 0.0 for level in levels]  # sums are exact; ties are many
    kept = keep_best(np.array(weights, np.float32), top_k, top_p).tolist()
    assert kept == sorted(kept)
    expected = reference_kept(weights, top_k, top_p)
    assert {i for i in kept if weights[i]} == {i for i in expected if weights[i]}


def test_nucleus_larger_than_the_first_guess():
    weights = np.ones(5000, np.float32)
    assert keep_best(weights, 0, 0.5).tolist() == list(range(2500))
    assert keep_best(weights, 3000, 0.5).tolist() == list(range(1500))


@settings(deadline=None)
@given(st.data())
def test_a_row_does_not_depend_on_its_batch(data):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 100)))
    kinds = [
        GREEDY, SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.6),
        SamplingParams(temperature=0.3, top_k=50, top_p=0.9),
    ]  # fmt: skip
    rows = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=9))
    logits = torch.randn(len(rows), 3001, generator=generator)
    batch = [Draw(params, seed=index, position=index * 3) for index, params in enumerate(rows)]
    alone = [sample(logits[i : i + 1], [draw])[0] for i, draw in enumerate(batch)]
    assert sample(logits, batch) == alone
