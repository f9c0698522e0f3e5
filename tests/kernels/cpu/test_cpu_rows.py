"""Compiled row-wise ops and embeddings."""

import pytest
import torch
from cpu_cases import ARCHITECTURES, bind, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import (
    EMBEDDING,
    NORM,
    QUANTIZE_ROWS,
    SILU_MUL,
    EmbeddingProblem,
    LinearProblem,
    RowsProblem,
)
from tessera.kernels.registry import Device
from tessera.numerics import plain, quantize, quantize_rows
from tessera.spec import A8, LinearSpec, Recipe

WIDTHS = [1, 7, 64, 576]


def rows_problem(arch, width, quantize=False):
    return RowsProblem(Device("cpu", arch), width, torch.float32, quantize)


def bound(registry, problem, *arguments):
    return registry.select(problem).bind(problem, *arguments)


def relative(actual, expected):
    return float((actual.double() - expected).norm() / expected.norm())


def same_rows(a, b):
    return (
        torch.equal(a.codes, b.codes) and torch.equal(a.scale, b.scale) and torch.equal(a.row_sum, b.row_sum)
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("width", WIDTHS)
def test_quantize_rows_is_bit_equal(arch, width):
    torch.manual_seed(0)
    x = torch.randn(9, width) * torch.logspace(-30, 30, 9).unsqueeze(-1)
    x[3] = 0
    x[4] *= 0.5 / x[4].abs().max() * 2  # largest element 1: codes at ties
    op = bound(QUANTIZE_ROWS, rows_problem(arch, width, True))
    assert same_rows(op(x), rows(x))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_quantize_rows_of_any_floats(arch, values):
    """NaN, infinities, subnormals: the same codes, and a scale that is not finite where the row is not."""
    x = torch.tensor([values])
    actual, expected = bound(QUANTIZE_ROWS, rows_problem(arch, len(values), True))(x), quantize_rows(x)
    assert torch.equal(actual.codes, expected.codes)
    assert torch.equal(actual.row_sum, expected.row_sum)
    assert torch.equal(actual.scale.nan_to_num(), expected.scale.nan_to_num())
    assert torch.equal(actual.scale.isfinite(), expected.scale.isfinite())


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("residual", [False, True])
def test_norm(arch, width, residual):
    torch.manual_seed(0)
    x, weight = torch.randn(5, width), torch.randn(width)
    other = torch.randn(5, width) if residual else None
    op = bound(NORM, rows_problem(arch, width), weight, 1e-5)
    y, total = op(x, other)
    assert torch.equal(total, x + other if residual else x)
    wide = total.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert relative(y, expected) < 1e-6
    quantized, again = bound(NORM, rows_problem(arch, width, True), weight, 1e-5)(x, other)
    assert same_rows(quantized, rows(y))
    assert torch.equal(again, total)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(arch, width):
    torch.manual_seed(0)
    x = torch.randn(5, 2 * width) * 4
    x[0, 0], x[1, 0], x[2, 0] = 200.0, -200.0, -87.5
    y = bound(SILU_MUL, rows_problem(arch, width))(x)
    gate, up = x.double().chunk(2, -1)
    assert relative(y, gate * gate.sigmoid() * up) < 1e-6
    assert same_rows(bound(SILU_MUL, rows_problem(arch, width, True))(x), rows(y))
    x[0, 0] = float("nan")
    assert bound(SILU_MUL, rows_problem(arch, width))(x)[0, 0].isnan()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rows_do_not_depend_on_their_batch(arch):
    torch.manual_seed(0)
    x, weight = torch.randn(100, 576), torch.rand(576)
    norm = bound(NORM, rows_problem(arch, 576), weight, 1e-5)
    silu = bound(SILU_MUL, rows_problem(arch, 288))
    whole, gated = norm(x, x)[0], silu(x)
    for r in (0, 41, 99):
        one = x[r : r + 1]
        assert torch.equal(norm(one, one)[0], whole[r : r + 1])
        assert torch.equal(silu(one), gated[r : r + 1])


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["w8", torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_embedding_takes_rows_exactly(arch, kind, ids):
    torch.manual_seed(0)
    floats = torch.randn(50, 30)
    chain = Recipe.parse("w8a8-chn").weight_chain()
    table = quantize(floats, chain) if kind == "w8" else plain(floats.to(kind))
    problem = EmbeddingProblem(Device("cpu", arch), 50, 30, table.chain, torch.float32)
    look_up = EMBEDDING.select(problem).bind(problem, table)
    tokens = torch.tensor([0, 49, 16, 17, 0], dtype=ids)
    assert torch.equal(look_up(tokens), table.dequantize()[tokens.long()])


def test_tied_table_is_held_once():
    device = Device("cpu", ARCHITECTURES[0])
    table = quantize(torch.randn(48, 32), Recipe.parse("w8a8-chn").weight_chain())
    problem = EmbeddingProblem(device, 48, 32, table.chain, torch.float32)
    look_up = EMBEDDING.select(problem).bind(problem, table)
    head = bind(LinearProblem(device, LinearSpec(48, 32, table.chain, A8)), table, None)
    assert head.packed is look_up.packed
    hidden = look_up(torch.tensor([5]))
    logits = head(rows(hidden))
    assert int(logits.argmax()) == 5


def test_arguments_are_checked_by_name():
    arch = ARCHITECTURES[0]
    norm = bound(NORM, rows_problem(arch, 16), torch.ones(16), 1e-5)
    with pytest.raises(KernelArgumentError, match=r"rms_norm: x is .*\[2, 15\]"):
        norm(torch.randn(2, 15), None)
    with pytest.raises(KernelArgumentError, match="rms_norm: residual"):
        norm(torch.randn(2, 16), torch.randn(3, 16)[:, :15])
    table = plain(torch.randn(8, 4))
    problem = EmbeddingProblem(Device("cpu", arch), 8, 4, table.chain, torch.float32)
    look_up = EMBEDDING.select(problem).bind(problem, table)
    for bad in (torch.tensor([0, 8]), torch.tensor([-1], dtype=torch.int32)):
        with pytest.raises(KernelArgumentError, match=r"token_ids span .*rows 0\.\.7"):
            look_up(bad)
    with pytest.raises(KernelArgumentError, match="token_ids is"):
        look_up(torch.tensor([1.0]))
