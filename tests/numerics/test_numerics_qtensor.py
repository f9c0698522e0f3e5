"""QTensor: what it refuses, and the algebra on data against the same operation on values."""

import pytest
import torch

from tessera.numerics import QTensor, QTensorError, code_dtype, concat, plain, quantize
from tessera.spec import (
    F16,
    S8,
    S8N,
    U4,
    U8,
    AlgebraError,
    Chain,
    Grid,
    Param,
    Pattern,
    Qtile,
    Recipe,
    Step,
    progressive,
    symmetric,
)

CHAINS = {
    "tensor": symmetric(S8N, Pattern.tensor()),
    "channel": Recipe.parse("w8a8").weight_chain(),
    "groups": Recipe.parse("w4a16-g32").weight_chain(),
    "qoq": Recipe.parse("qoq-g32").weight_chain(),
    "qoq ragged": Recipe.parse("qoq-g64", ragged_tail=True).weight_chain(),
}


def weight(rows=6, columns=96, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def qoq_tensor(code, s=16, z=7):
    """One group of two equal codes under level-2 parameters (s, z)."""
    chain = progressive(Pattern.blocks(1, 2))
    params = {
        "group_scale": plain(torch.tensor([[s]], dtype=torch.uint8), Chain(U8)),
        "group_zero": plain(torch.tensor([[z]], dtype=torch.uint8), Chain(U4)),
        "scale": plain(torch.ones(1, 1, dtype=torch.float16)),
    }
    return QTensor(Qtile((1, 2), chain), torch.full((1, 2), code, dtype=torch.uint8), params)


def test_integer_overflow_is_refused_when_the_tensor_is_made():
    """The counterexample to the protective range: [-119, 114] gives s 16, z 7; code 15 decodes to 128."""
    assert qoq_tensor(14).dequantize().tolist() == [[112.0, 112.0]]
    with pytest.raises(QTensorError, match=r"span \[128, 128\], outside s8 .*, first in block \[0, 0\]"):
        qoq_tensor(15)


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        (torch.zeros(6, 95, dtype=torch.int8), "shape"),
        (torch.zeros(6, 96, dtype=torch.uint8), "int8"),
        (torch.full((6, 96), -128, dtype=torch.int8), "outside s8n"),
    ],
)
def test_codes_must_fit(codes, reason):
    made = quantize(weight(), CHAINS["channel"])
    with pytest.raises(QTensorError, match=reason):
        QTensor(made.tile, codes, made.params)


def test_the_first_that_does_not_fit_is_named():
    made = quantize(weight(), Recipe.parse("w4a8-g32").weight_chain())
    made.params["group_scale"].codes[4, 1], made.params["group_zero"].codes[4, 1] = 16, 0
    made.codes[4, 40] = 15
    with pytest.raises(QTensorError, match=r"first in block \[4, 1\]"):
        QTensor(made.tile, made.codes, made.params)


def test_parameters_must_fit():
    made = quantize(weight(), CHAINS["channel"])
    with pytest.raises(QTensorError, match="parameters"):
        QTensor(made.tile, made.codes)
    with pytest.raises(QTensorError, match="parameter scale"):
        QTensor(made.tile, made.codes, {"scale": plain(torch.ones(6, 1))})
    with pytest.raises(QTensorError, match="not a storage type"):
        plain(torch.zeros(2, dtype=torch.int8))


@pytest.mark.parametrize(
    ("grid", "dtype"),
    [
        (U4, torch.uint8),
        (U8, torch.uint8),
        (S8, torch.int8),
        (Grid(9), torch.int16),
        (Grid(16), torch.int32),
        (Grid(16, signed=True), torch.int16),
        (Grid(32), torch.int64),
        (F16, torch.float16),
    ],
)
def test_code_dtype_holds_the_grid(grid, dtype):
    assert code_dtype(grid) == dtype
    if isinstance(grid, Grid):
        assert torch.iinfo(dtype).min <= grid.low and grid.high <= torch.iinfo(dtype).max


@pytest.mark.parametrize("name", CHAINS)
def test_slice_rows_and_take_rows(name):
    q = quantize(weight(), CHAINS[name])
    assert torch.equal(q.slice(0, 2, 5).dequantize(), q.dequantize()[2:5])
    rows = torch.tensor([5, 0, 0])
    assert torch.equal(q.take_rows(rows).dequantize(), q.dequantize()[rows])


@pytest.mark.parametrize("name", ["tensor", "channel", "groups", "qoq", "qoq ragged"])
def test_slice_columns_at_block_boundaries(name):
    q = quantize(weight(), CHAINS[name])
    assert torch.equal(q.slice(1, 64, 96).dequantize(), q.dequantize()[:, 64:])
    if name not in ("tensor", "channel"):
        with pytest.raises(AlgebraError):
            q.slice(1, 16, 96)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["tensor", "channel", "groups", "qoq"])
def test_concat_keeps_values(name, axis):
    parts = [quantize(weight(seed=seed) * (seed + 1), CHAINS[name]) for seed in range(3)]
    joined = concat(parts, axis)
    assert torch.equal(joined.dequantize(), torch.cat([p.dequantize() for p in parts], axis))


def test_concat_then_slice_is_identity():
    parts = [quantize(weight(rows, 96, rows), CHAINS["qoq"]) for rows in (4, 7)]
    back = concat(parts).slice(0, 4, 11)
    assert back.tile == parts[1].tile
    assert torch.equal(back.codes, parts[1].codes)
    assert all(torch.equal(back.params[n].codes, parts[1].params[n].codes) for n in back.params)


def test_concat_of_one_is_that_one():
    q = quantize(weight(), CHAINS["tensor"])
    assert concat([q]) is q


def test_nested_parameters_and_cast():
    """A scale that is itself quantized: value = codes * (d * 2)."""
    inner = Chain(
        U8, (Step("cast", F16), Step("scale", F16, (Param("unit", Chain(F16)),), Pattern.channel()))
    )
    chain = Chain(U4, (Step("scale", F16, (Param("d", inner),), Pattern.channel()),))
    unit = plain(torch.full((2, 1), 2.0, dtype=torch.float16))
    d = QTensor(Qtile((2, 1), inner), torch.tensor([[3], [5]], dtype=torch.uint8), {"unit": unit})
    q = QTensor(Qtile((2, 2), chain), torch.tensor([[1, 2], [0, 15]], dtype=torch.uint8), {"d": d})
    assert q.dequantize().tolist() == [[6.0, 12.0], [0.0, 150.0]]
    assert q.slice(0, 1, 2).dequantize().tolist() == [[0.0, 150.0]]


def test_dequantize_types():
    q = quantize(weight(), CHAINS["qoq"])
    assert q.dequantize(torch.float16).dtype == torch.float16
    # s8 times fp16: 19 significant bits, exact in fp32.
    assert torch.equal(q.dequantize(torch.float64), q.dequantize().double())


def test_to_and_nbytes():
    q = quantize(weight(), CHAINS["qoq"])
    assert torch.equal(q.to("cpu").dequantize(), q.dequantize())
    assert q.nbytes == 6 * 48 + 6 * 3 + 6 * 3 // 2 + 6 * 2
    assert (q.shape, q.chain) == (q.tile.shape, q.tile.chain)
