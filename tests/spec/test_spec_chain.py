"""Grids, patterns and chains: what they accept, what they say, and their JSON."""

import pytest

from tessera.spec import (
    A8,
    E4M3,
    F16,
    F32,
    S8,
    S8N,
    U4,
    U8,
    WHOLE,
    AlgebraError,
    Chain,
    Float,
    Grid,
    LinearSpec,
    Param,
    Pattern,
    Recipe,
    SpecError,
    Step,
    Transform,
    affine_min,
    affine_zero,
    group_of,
    param,
    parse_dtype,
    plain,
    progressive,
    symmetric,
)

NESTED = Chain(
    U4,
    (Step("scale", F32, (Param("scale", symmetric(U8, Pattern.tensor())),), Pattern.blocks(1, 32)),),
)
CHAINS = [
    plain(F16),
    A8,
    affine_zero(4, Pattern.channel()),
    affine_min(4, Pattern((1, 1, WHOLE))),
    progressive(Pattern.blocks(1, 128)),
    progressive(Pattern.blocks(1, 128, ragged=True)),
    Chain(U4, (Step("lookup", F16, (param("table", F16),)),)),
    Chain(Float("f4e2m1"), (Step("scale", F32, (param("scale", E4M3),), Pattern.blocks(1, 16)),)),
    Chain(U4, (Step("shift", F16, (param("offset", F16),), Pattern.channel()),)),
    NESTED,
]


@pytest.mark.parametrize(
    ("grid", "low", "high", "text"),
    [
        (U4, 0, 15, "u4"),
        (U8, 0, 255, "u8"),
        (S8, -128, 127, "s8"),
        (S8N, -127, 127, "s8n"),
        (Grid(1), 0, 1, "u1"),
        (Grid(1, signed=True), -1, 0, "s1"),
        (Grid(4, signed=True), -8, 7, "s4"),
    ],
)
def test_grid_range_and_name(grid, low, high, text):
    assert (grid.low, grid.high, str(grid)) == (low, high, text)
    assert low in grid and high in grid and low - 1 not in grid and high + 1 not in grid
    assert parse_dtype(text) == grid


@pytest.mark.parametrize("text", ["f8", "u", "4", "u0", "u33", "u4n", "s1n", "x4", "f16n", "u-4", ""])
def test_unknown_types_are_refused(text):
    with pytest.raises(SpecError):
        parse_dtype(text)


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_json_round_trip(chain):
    assert Chain.from_json(chain.to_json()) == chain


@pytest.mark.parametrize(
    "raw", [3, {}, {"codes": "u4"}, {"codes": "u4", "steps": [{}]}, {"codes": "q4", "steps": []}, None]
)
def test_malformed_json_is_refused(raw):
    with pytest.raises(SpecError):
        Chain.from_json(raw)


def test_chain_text_reads_as_in_the_design():
    text = str(progressive(Pattern.blocks(1, 128)))
    assert text == (
        "u4 --affine_zero(group_scale: u8, group_zero: u4; b(1,128))--> s8 --scale(scale: f16; c)--> f16"
    )


def test_steps_check_their_parameters():
    with pytest.raises(SpecError, match="takes 2 parameters"):
        Step("affine_min", F32, (param("scale", F16),))
    with pytest.raises(SpecError, match="unknown step"):
        Step("cube", F32)
    with pytest.raises(SpecError, match="repeat"):
        scale = Step("scale", F32, (param("scale", F16),))
        Chain(U4, (scale, scale))
    with pytest.raises(SpecError, match="integer codes"):
        Chain(F16, (Step("lookup", F16, (param("table", F16),)),))


@pytest.mark.parametrize(
    ("pattern", "counts", "text"),
    [
        (Pattern.tensor(), (1, 1), "t"),
        (Pattern.channel(), (4, 1), "c"),
        (Pattern.channel(axis=1), (1, 6), "c1"),
        (Pattern.blocks(1, 3), (4, 2), "b(1,3)"),
        (Pattern.blocks(2, 3), (2, 2), "b(2,3)"),
        (Pattern.blocks(1, 4, ragged=True), (4, 2), "b(1,4,ragged)"),
        (Pattern.individual(), (4, 6), "i"),
    ],
)
def test_pattern_counts(pattern, counts, text):
    assert pattern.counts((4, 6)) == counts
    assert str(pattern) == text
    assert Pattern.from_json(pattern.to_json()) == pattern


def test_blocks_must_divide_unless_ragged():
    with pytest.raises(SpecError, match="2 left over"):
        Pattern.blocks(1, 4).counts((4, 6))


def test_pattern_rank_must_match():
    with pytest.raises(SpecError, match="has 2 axes"):
        Pattern.channel().counts((4,))


def test_index_range_cuts_only_at_blocks():
    pattern = Pattern.blocks(1, 4, ragged=True)
    assert pattern.index_range(1, 10, 4, 10) == (1, 3)
    assert pattern.index_range(0, 3, 1, 2) == (1, 2)
    with pytest.raises(AlgebraError, match="multiples of 4"):
        pattern.index_range(1, 10, 2, 8)


def test_group_of():
    assert group_of(progressive(Pattern.blocks(1, 64))) == 64
    assert group_of(affine_zero(4, Pattern.channel())) is None


def test_linear_spec_json_round_trip():
    spec = LinearSpec(8, 128, progressive(Pattern.blocks(1, 64)), A8, F32, True, (Transform("hadamard", 64),))
    assert LinearSpec.from_json(spec.to_json()) == spec
    assert spec.weight_tile.shape == (8, 128)
    with pytest.raises(SpecError):
        LinearSpec.from_json({**spec.to_json(), "output": "s8"})
    with pytest.raises(SpecError):
        Transform.from_json({"kind": "mirror", "block": 0})


def test_activation_of_recipe_is_int8_per_token():
    assert Recipe.parse("qoq-g64").activation_chain() == A8
    assert isinstance(A8.out, Float)
