"""Sizes of Qtiles and their algebra."""

from fractions import Fraction

import pytest

from tessera.spec import (
    F16,
    S8N,
    U4,
    U8,
    AlgebraError,
    Chain,
    Param,
    Pattern,
    Qtile,
    SpecError,
    Step,
    affine_zero,
    concat,
    param,
    plain,
    progressive,
    symmetric,
)

QOQ = progressive(Pattern.blocks(1, 128))


def test_bits_of_qoq_g128():
    """4 bits a weight, 8 + 4 for each group of 128, 16 for each row."""
    tile = Qtile((32, 1024), QOQ)
    assert tile.bits == 32 * 1024 * 4 + 32 * 8 * 12 + 32 * 16
    assert tile.bits_per_element == Fraction(4) + Fraction(12, 128) + Fraction(16, 1024)
    assert tile.bytes == tile.bits // 8


def test_bytes_round_up_each_stored_array():
    tile = Qtile((3, 5), affine_zero(4, Pattern.channel()))
    assert tile.bits == 15 * 4 + 3 * 16 + 3 * 4
    assert tile.bytes == 8 + 6 + 2


def test_lookup_table_has_one_entry_per_code():
    chain = Chain(U4, (Step("lookup", F16, (param("table", F16),)),))
    assert Qtile((4, 8), chain).param_tiles()["table"].shape == (16,)


def test_nested_parameters_are_priced():
    inner = symmetric(U8, Pattern.tensor())
    chain = Chain(U4, (Step("scale", F16, (Param("d", inner),), Pattern.blocks(1, 32)),))
    assert Qtile((2, 64), chain).bits == 128 * 4 + 4 * 8 + 16


def test_shape_must_fit():
    with pytest.raises(SpecError, match="do not divide"):
        Qtile((4, 100), QOQ)
    with pytest.raises(SpecError, match="negative"):
        Qtile((-1,), plain(F16))


def test_slice_between_blocks_only():
    tile = Qtile((4, 512), QOQ)
    assert tile.slice(1, 128, 384).shape == (4, 256)
    assert tile.slice(0, 1, 2).shape == (1, 512)
    with pytest.raises(AlgebraError, match="cuts a block"):
        tile.slice(1, 64, 256)
    with pytest.raises(AlgebraError, match="outside axis"):
        tile.slice(1, 0, 513)
    with pytest.raises(AlgebraError, match="axis 2"):
        tile.slice(2, 0, 1)


def test_take_rows_refuses_blocks_of_rows():
    assert Qtile((4, 512), QOQ).take_rows(9).shape == (9, 512)
    with pytest.raises(AlgebraError, match="blocks of 2 rows"):
        Qtile((4, 8), symmetric(S8N, Pattern.blocks(2, 8))).take_rows(1)


def test_concat_promotes_a_shared_parameter():
    parts = [Qtile((2, 8), symmetric(S8N, Pattern.tensor())), Qtile((6, 8), symmetric(S8N, Pattern.tensor()))]
    joined = concat(parts)
    assert joined.shape == (8, 8)
    assert joined.chain == symmetric(S8N, Pattern.channel())
    assert concat(parts[:1]) == parts[0]


def test_concat_refuses_with_the_reason():
    tile = Qtile((4, 128), QOQ)
    with pytest.raises(AlgebraError, match="unequal chains"):
        concat([tile, Qtile((4, 128), affine_zero(4, Pattern.channel()))])
    with pytest.raises(AlgebraError, match="differ off axis"):
        concat([tile, Qtile((4, 256), QOQ)])
    with pytest.raises(AlgebraError, match="nothing"):
        concat([])
    ragged = Qtile((4, 100), progressive(Pattern.blocks(1, 64, ragged=True)))
    with pytest.raises(AlgebraError, match="ends inside a block"):
        concat([ragged, ragged], axis=1)
    lookup = Qtile((4, 8), Chain(U4, (Step("lookup", F16, (param("table", F16),)),)))
    with pytest.raises(AlgebraError, match="decode before joining"):
        concat([lookup, lookup])
    nested = Chain(
        U4, (Step("scale", F16, (Param("d", symmetric(U8, Pattern.tensor())),), Pattern.channel()),)
    )
    with pytest.raises(AlgebraError, match="quantized themselves"):
        concat([Qtile((4, 8), nested)] * 2)
