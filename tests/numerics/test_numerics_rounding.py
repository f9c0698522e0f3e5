"""Rounding to nearest over every chain and pattern: error bounds, idempotence, storage, guards."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.numerics import NoEncoderError, ScaleRangeError, fit, levels_of, quantize
from tessera.numerics.blocks import spread
from tessera.spec import (
    BF16,
    F16,
    F32,
    S8N,
    U4,
    WHOLE,
    Chain,
    Grid,
    Pattern,
    Step,
    affine_min,
    affine_zero,
    param,
    plain,
    progressive,
    symmetric,
)

PATTERNS = [
    Pattern.tensor(),
    Pattern.channel(),
    Pattern.channel(axis=1),
    Pattern.blocks(1, 8),
    Pattern.blocks(2, 8),
    Pattern.blocks(1, 7, ragged=True),
    Pattern.blocks(4, WHOLE, ragged=True),
    Pattern.individual(),
]
MAKERS = {
    "scale": lambda bits, p: symmetric(Grid(bits, signed=True, narrow=bits > 1), p),
    "scale full": lambda bits, p: symmetric(Grid(bits, signed=True), p),
    "affine_zero": affine_zero,
    "affine_min": affine_min,
}
chains = st.builds(
    lambda make, bits, pattern: MAKERS[make](bits, pattern),
    st.sampled_from(sorted(MAKERS)),
    st.integers(2, 8),
    st.sampled_from(PATTERNS),
)
data = st.tuples(
    st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 300.0]), st.sampled_from([-3.0, 0.0, 0.3])
)


def sample(seed_scale_shift):
    seed, scale, shift = seed_scale_shift
    return (torch.randn(6, 24, generator=torch.Generator().manual_seed(seed)) + shift) * scale


@settings(max_examples=150, deadline=None)
@given(chains, data)
def test_error_is_half_a_step(chain, spec):
    """Inside the representable range the error is at most half a step.

    Rounding scale and minimum to fp16 moves the ends of the range by their relative error (2^-11), and an
    integer zero point shifts the range by up to half a step more. Below fp16's normal range scale and
    minimum are off by up to 2^-25.
    """
    x = sample(spec)
    q = quantize(x, chain)
    pattern = chain.steps[0].pattern
    step = spread(q.params["scale"].dequantize(), pattern, x.shape).abs()
    reach = step / 2 + (x.abs() + step * 2**chain.codes.bits) * 2**-10 + 2**chain.codes.bits * 2**-24
    if chain.steps[0].op == "affine_zero":
        reach = reach + step / 2
    if chain == symmetric(Grid(chain.codes.bits, signed=True), pattern):
        reach = reach + step  # the far end of -8..7 is one code short
    assert bool(((q.dequantize() - x).abs() <= reach).all())


@settings(max_examples=100, deadline=None)
@given(chains, data)
def test_idempotent_on_its_own_grid(chain, spec):
    """Values of the grid, encoded with the same parameters, give the same codes.

    A block of equal values has the smallest step beside its minimum: fp32 does not tell its levels apart.
    """
    q = quantize(sample(spec), chain)
    pattern = chain.steps[0].pattern
    grid = levels_of(chain, q.params).spread(pattern, q.shape)
    apart = grid.step.abs() > grid.offset.abs() * 2**-21
    again = torch.where(apart, grid.nearest(q.dequantize()), q.codes.float())
    assert torch.equal(again, q.codes.float())
    assert torch.equal(grid.value(q.codes.float()), q.dequantize())


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("make", ["affine_zero", "affine_min"])
def test_every_width_uses_its_whole_grid(make, bits):
    x = torch.linspace(-1, 2**bits - 2, 4096).reshape(1, -1)
    q = quantize(x, MAKERS[make](bits, Pattern.channel()))
    assert q.codes.unique().numel() == 2**bits


def test_zero_is_exact_with_an_integer_zero_point():
    x = sample((0, 1.0, 0.0))
    x[:, ::5] = 0.0
    for chain in (affine_zero(4, Pattern.blocks(1, 8)), progressive(Pattern.blocks(1, 8))):
        assert bool((quantize(x, chain).dequantize()[:, ::5] == 0).all())


def test_rows_are_independent():
    x = sample((1, 1.0, 0.0))
    order = torch.tensor([3, 0, 5])
    for chain in (affine_zero(4, Pattern.blocks(1, 8)), progressive(Pattern.blocks(1, 8))):
        assert torch.equal(quantize(x, chain).dequantize()[order], quantize(x[order], chain).dequantize())


@pytest.mark.parametrize("name", [*sorted(MAKERS), "progressive"])
def test_constant_blocks(name):
    """Zero range: no division by zero, zeros stay zeros, constants come back to a code step."""
    chain = (
        progressive(Pattern.blocks(1, 8)) if name == "progressive" else MAKERS[name](4, Pattern.blocks(1, 8))
    )
    assert bool((quantize(torch.zeros(2, 16), chain).dequantize() == 0).all())
    for value in (2.5, -2.5):
        back = quantize(torch.full((2, 16), value), chain).dequantize()
        assert bool(((back - value).abs() <= 2.5 * 2**-6).all()), back


def test_underflow_keeps_a_positive_scale():
    """A range whose scale is below the smallest fp16 gets that smallest, not 0."""
    q = quantize(torch.full((1, 8), 1e-9), symmetric(S8N, Pattern.channel()))
    assert float(q.params["scale"].dequantize()) == 2.0**-24
    assert bool((q.dequantize() == 0).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
@pytest.mark.parametrize("name", ["scale", "affine_zero", "affine_min", "progressive"])
def test_unstorable_data_raises(name, bad):
    x = torch.ones(2, 16)
    x[1, 3] = bad
    chain = (
        progressive(Pattern.blocks(1, 8)) if name == "progressive" else MAKERS[name](4, Pattern.blocks(1, 8))
    )
    with pytest.raises(ScaleRangeError, match="is not finite"):
        quantize(x, chain)


def test_codes_answer_the_rounded_scale():
    """The scale is rounded to bf16 first; codes chosen for the unrounded one would be off by one code."""
    chain = symmetric(S8N, Pattern.channel(), BF16)
    x = torch.linspace(0.1, 1.01, 500).reshape(1, -1)
    q = quantize(x, chain)
    scale = q.params["scale"].dequantize()
    assert scale.item() != (x.max() / 127).item()
    inside = x <= 127 * scale
    assert bool(((q.dequantize() - x).abs() <= scale * 0.5001)[inside].all())


def test_round_half_to_even():
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    q = quantize(x, symmetric(S8N, Pattern.channel()))
    assert q.codes.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_full_signed_grid_puts_the_extreme_on_the_lowest_code():
    q = quantize(torch.tensor([[8.0, -3.0], [-8.0, 3.0]]), symmetric(Grid(4, signed=True), Pattern.channel()))
    assert q.codes.tolist() == [[-8, 3], [-8, 3]]
    assert q.params["scale"].dequantize().tolist() == [[-1.0], [1.0]]


def test_ragged_tail_is_its_own_group():
    x = torch.cat([torch.full((1, 8), 100.0), torch.linspace(-1, 1, 5).reshape(1, -1)], 1)
    q = quantize(x, affine_zero(4, Pattern.blocks(1, 8, ragged=True)))
    assert float((q.dequantize() - x)[:, 8:].abs().max()) <= 0.08


def test_shrink_clips_the_range():
    x = sample((2, 1.0, 0.0))
    chain = affine_zero(4, Pattern.blocks(1, 8))
    whole, half = fit(x, chain), fit(x, chain, torch.full((6, 3), 0.5))
    ratio = half["scale"].dequantize() / whole["scale"].dequantize()
    assert torch.allclose(ratio, torch.full_like(ratio, 0.5), rtol=1e-3)


def test_plain_chains_cast():
    x = sample((3, 1.0, 0.0))
    assert torch.equal(quantize(x, plain(F16)).codes, x.half())


NF4 = torch.tensor(
    [
        -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0,
    ]
)  # fmt: skip


def lookup_chain(*more):
    return Chain(U4, (Step("lookup", F32, (param("table", F32),)), *more))


def test_lookup_takes_the_nearest_entry():
    x = sample((4, 1.0, 0.0))
    scale = Step("scale", F32, (param("scale", F32),), Pattern.blocks(1, 8))
    q = quantize(x, lookup_chain(scale), NF4)
    s = spread(q.params["scale"].dequantize(), scale.pattern, x.shape)
    best = ((x / s).unsqueeze(-1) - NF4).abs().amin(-1) * s
    assert torch.allclose((q.dequantize() - x).abs(), best, atol=1e-6)
    unscaled = quantize(NF4.reshape(1, -1), lookup_chain(), NF4)
    assert unscaled.codes.tolist() == [list(range(16))]


def test_chains_without_a_rule_are_refused():
    scale = Step("scale", F32, (param("scale", F16),), Pattern.channel())
    twice = Chain(U4, (scale, Step("scale", F32, (param("again", F16),), Pattern.channel())))
    x = torch.ones(2, 2)
    with pytest.raises(NoEncoderError, match="no rule"):
        quantize(x, twice)
    with pytest.raises(NoEncoderError, match="table"):
        quantize(x, lookup_chain())
    with pytest.raises(NoEncoderError, match="float codes"):
        quantize(x, Chain(F16, (scale,)))
    with pytest.raises(NoEncoderError, match="not affine"):
        levels_of(lookup_chain(), quantize(x, lookup_chain(), NF4).params)
