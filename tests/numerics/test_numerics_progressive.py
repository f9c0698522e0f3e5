"""QoQ's two levels: the protective range exhaustively, code bounds, and the kernel's lane arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.numerics import PROTECTIVE_RANGE, code_bounds, fit, levels_of, quantize
from tessera.numerics.progressive import group_params, to_level_1
from tessera.spec import Pattern, Recipe, progressive


def all_ranges(limit):
    """Level-2 (s, z) of every group range low <= 0 <= high inside +-limit, with the range."""
    low, high = torch.meshgrid(
        torch.arange(-limit, 1.0), torch.arange(0.0, limit + 1), indexing="ij"
    )  # extended ranges always hold 0
    s, z = group_params(low.flatten(), high.flatten())
    return low.flatten(), high.flatten(), s, z


def decoded_extremes(limit):
    """What rounding to nearest, without the clamp of code_bounds, decodes the two ends of each range to."""
    low, high, s, z = all_ranges(limit)
    ends = torch.stack([low, high])
    codes = ((ends / s).round() + z).clamp(0, 15)
    return (codes - z) * s


def test_119_is_safe_for_nearest_codes_and_120_is_not():
    safe, unsafe = decoded_extremes(PROTECTIVE_RANGE), decoded_extremes(PROTECTIVE_RANGE + 1)
    assert safe.min() >= -128 and safe.max() <= 127
    assert unsafe.max() > 127


def test_counterexample_to_119_for_other_codes():
    s, z = group_params(torch.tensor(-119.0), torch.tensor(114.0))
    assert (s.item(), z.item()) == (16, 7)
    assert (15 - z) * s == 128
    assert [b.item() for b in code_bounds(s, z)] == [0, 14]


def test_code_bounds_are_exactly_the_codes_that_fit_int8():
    """Every (min, max) inside +-119 and every code: inside the bounds iff the decoded value is an int8."""
    _, _, s, z = all_ranges(PROTECTIVE_RANGE)
    low, high = code_bounds(s, z)
    codes = torch.arange(16.0).unsqueeze(1)
    decoded = (codes - z) * s
    fits = (decoded >= -128) & (decoded <= 127)
    assert torch.equal((codes >= low) & (codes <= high), fits)
    assert s.max() == 16 and s.min() == 1 and z.min() >= 0 and z.max() <= 15


def test_lane_arithmetic_of_the_kernel():
    """w * s + (128 - z s) * 0x01010101 mod 2^32 adds 128 to four decoded int8 in one multiply-add."""
    rng = np.random.default_rng(0)
    for s in range(1, 129):
        for z in range(16):
            low, high = (int(b) for b in code_bounds(torch.tensor(s), torch.tensor(z)))
            codes = rng.integers(low, high + 1, (64, 4), dtype=np.uint64)
            codes[0], codes[1] = low, high
            word = (codes << np.array([0, 8, 16, 24], dtype=np.uint64)).sum(1)
            offset = (128 - z * s) * 0x01010101 % 2**32
            result = (word * np.uint64(s) + np.uint64(offset)) % np.uint64(2**32)
            lanes = result[:, None] >> np.array([0, 8, 16, 24], dtype=np.uint64) & np.uint64(255)
            assert np.array_equal(lanes.astype(np.int64), (codes.astype(np.int64) - z) * s + 128)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1e-4, 1.0, 100.0]), st.sampled_from([8, 16, 32]))
def test_nearest_codes_of_real_weights(seed, scale, group):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(5, 64, generator=generator) * scale
    w[1] = w[1].abs()
    w[2, :8] *= 30
    w[3] = -w[3].abs() - scale
    chain = progressive(Pattern.blocks(1, group))
    q = quantize(w, chain)
    s, z = q.params["group_scale"].codes.int(), q.params["group_zero"].codes.int()
    low, high = code_bounds(s, z)
    codes = q.codes.reshape(5, -1, group).int()
    assert bool(((codes >= low[..., None]) & (codes <= high[..., None])).all())
    level_1 = to_level_1(w, q.params["scale"].dequantize())
    decoded = (codes - z[..., None]) * s[..., None]
    inside = level_1.reshape(5, -1, group).clamp(((low - z) * s)[..., None], ((high - z) * s)[..., None])
    # Half a group step, and half a level-1 step because codes are chosen for w and not for its level-1 value.
    assert bool(((decoded - inside).abs() <= s[..., None] / 2 + 0.5).all())


def test_levels_are_those_of_the_chain():
    w = torch.randn(4, 64, generator=torch.Generator().manual_seed(5))
    chain = Recipe.parse("qoq-g32").weight_chain()
    params = fit(w, chain)
    grid = levels_of(chain, params)
    step = params["group_scale"].dequantize() * params["scale"].dequantize()
    assert torch.equal(grid.step, step)
    assert torch.equal(grid.offset, -params["group_zero"].dequantize() * step)


@pytest.mark.parametrize("sign", [1, -1])
def test_groups_far_from_zero_keep_their_far_end(sign):
    """A group at 100..119 of the row: without 0 in its range the zero point would not be storable."""
    w = sign * torch.cat([torch.linspace(1, 119, 8), torch.linspace(100, 119, 8)]).reshape(1, -1)
    error = (quantize(w, progressive(Pattern.blocks(1, 8))).dequantize() - w).abs()
    assert float(error.max()) <= 8 / 2 + 0.6
