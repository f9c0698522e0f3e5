"""Every row of both tables of QFactory, of multiplication, negation and reduction, in exact arithmetic."""

import itertools

import pytest
import torch
from algebra import KINDS, blocks, equal, form, tensor, value
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.compiler import interpret, ops, program, quantized
from tessera.compiler.dims import Dim
from tessera.compiler.node import walk
from tessera.compiler.rules import Refusal, Rewrite, transformations
from tessera.compiler.rules.add import TABLE_1
from tessera.compiler.rules.forms import Form, Shared, readings
from tessera.compiler.rules.matmul import TABLE_2, shared_group
from tessera.compiler.rules.mul import MUL_TABLE, negated
from tessera.compiler.rules.rebias import unsigned
from tessera.compiler.rules.reduce import outer_products, reduced
from tessera.compiler.rules.refused import Refused
from tessera.spec import F32, S8, S8N, U4, WHOLE, Pattern, Step, affine_zero, param

sizes = st.sampled_from([1, 2, 3, 4, 6])
few = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("kinds", TABLE_1, ids="+".join)
@few
@given(data=st.data(), m=sizes, n=sizes)
def test_addition(kinds, data, m, n):
    a = ops.tensor("a", (Dim("m", m), Dim("n", n)), F32)
    b = ops.tensor("b", a.shape, F32)
    left = form("a", kinds[0], a, data.draw(blocks((m, n))))
    right = form("b", kinds[1], b, data.draw(blocks((m, n))))
    for result in TABLE_1[kinds](left, right):
        assert equal(ops.add(value(left), value(right)), result)


@pytest.mark.parametrize("kinds", [k for k in TABLE_1 if "s" in k[0] and "s" in k[1]], ids="+".join)
@few
@given(data=st.data(), m=sizes, n=sizes)
def test_addition_of_equal_scales(kinds, data, m, n):
    """The rows that are × otherwise: one scale for both keeps the sum a Qtile."""
    a = ops.tensor("a", (Dim("m", m), Dim("n", n)), F32)
    left = form("a", kinds[0], a, data.draw(blocks((m, n))))
    right = form("b", kinds[1], ops.tensor("b", a.shape, F32), data.draw(blocks((m, n))))
    right = Form(right.codes, left.s, right.z)
    results = TABLE_1[kinds](left, right)
    assert results
    assert results[0].is_qtile
    assert all(equal(ops.add(value(left), value(right)), result) for result in results)


def test_the_addition_table_is_complete_and_crosses_where_it_should():
    pairs = {frozenset(p) for p in itertools.combinations_with_replacement(KINDS, 2)} - {frozenset(["plain"])}
    assert {frozenset(k) for k in TABLE_1} == pairs
    a, b = tensor("x", 4, 4), tensor("x", 4, 4)
    pattern = Pattern.blocks(2, 2)
    crossed = {
        k for k, row in TABLE_1.items() if not row(form("a", k[0], a, pattern), form("b", k[1], b, pattern))
    }
    assert crossed == {("plain", "s"), ("s", "s")}


@pytest.mark.parametrize("kinds", TABLE_2, ids="·".join)
@few
@given(data=st.data(), m=sizes, n=sizes, k=st.sampled_from([2, 4, 6, 12]), batch=st.booleans())
def test_matrix_product(kinds, data, m, n, k, batch):
    lead = (Dim("b", 2),) if batch else ()
    extra = (2,) if batch else ()
    a = ops.tensor("a", (*lead, Dim("m", m), Dim("k", k)), F32)
    b = ops.tensor("b", (*lead, Dim("k", k), Dim("n", n)), F32)
    left = form("a", kinds[0], a, data.draw(blocks((*extra, m, k))))
    right = form("b", kinds[1], b, data.draw(blocks((*extra, k, n))))
    try:
        result = TABLE_2[kinds](left, right)
    except Refused as reason:
        # Each term is split by its own parameters; one alone may change with every element.
        assert 1 in (_step(left, -1), _step(right, -2)) or "every element" in str(reason)
        return
    assert equal(ops.matmul(value(left), value(right)), result)


def _step(f, axis):
    return next((p.pattern.block[axis] for p in (f.s, f.z) if p), WHOLE)


def test_the_matrix_table_is_complete():
    assert set(TABLE_2) == set(itertools.product(KINDS, KINDS)) - {("plain", "plain")}


def test_sums_of_ones_stay_one_row_one_column_and_one_number():
    a, b = tensor("a", 6, 8), ops.tensor("b", (Dim("a1", 8), Dim("n", 5)), F32)
    whole = Pattern.tensor()
    result = TABLE_2["z", "z"](form("a", "z", a, whole), form("b", "z", b, whole))
    column = [n.args[0].shape for n in walk(result) if n.op == "repeat"]
    assert sorted(tuple(d.size for d in s) for s in column) == [(1, 1), (1, 5), (6, 1)]
    assert [n.op for n in walk(result)].count("matmul") == 1


def test_groups_along_k_are_the_gcd_of_both_operands():
    a = tensor("a", 2, 24)
    left = Shared(a, Pattern.blocks(1, 8))
    assert shared_group(a, left, Shared(a, Pattern.blocks(12, 1))) == 4
    assert shared_group(a, left, Shared(a, Pattern.blocks(24, 1))) == 8
    assert shared_group(a, None, Shared(a, Pattern.blocks(24, 1))) is None
    with pytest.raises(Refused, match="every element"):
        shared_group(a, left, Shared(a, Pattern.blocks(3, 1)))


def test_a_symbolic_or_ragged_reduction_is_not_split():
    x = ops.tensor("x", (Dim("m"), Dim("k")), F32)
    with pytest.raises(Refused, match="axis k is symbolic"):
        shared_group(x, Shared(x, Pattern.blocks(1, 8)), None)
    with pytest.raises(Refused, match="ragged"):
        shared_group(x, Shared(x, Pattern.blocks(1, 8, ragged=True)), None)


@pytest.mark.parametrize("kinds", MUL_TABLE, ids="×".join)
@few
@given(data=st.data(), m=sizes, n=sizes)
def test_elementwise_product(kinds, data, m, n):
    a = ops.tensor("a", (Dim("m", m), Dim("n", n)), F32)
    left = form("a", kinds[0], a, data.draw(blocks((m, n))))
    right = form("b", kinds[1], ops.tensor("b", a.shape, F32), data.draw(blocks((m, n))))
    assert equal(ops.mul(value(left), value(right)), MUL_TABLE[kinds](left, right))


@pytest.mark.parametrize("kind", KINDS[1:])
@few
@given(data=st.data(), m=sizes, n=sizes)
def test_negation_is_of_the_parameters(kind, data, m, n):
    f = form("a", kind, tensor("a", m, n), data.draw(blocks((m, n))))
    result = negated(f)
    assert equal(ops.neg(value(f)), result)
    assert (result.codes == f.codes) == ("s" in kind)


@pytest.mark.parametrize("kind", KINDS[1:])
@few
@given(data=st.data(), shape=st.tuples(sizes, sizes, sizes), axis=st.integers(0, 2), keep=st.booleans())
def test_reduction(kind, data, shape, axis, keep):
    f = form("a", kind, tensor("a", *shape), data.draw(blocks(shape, whole=axis)))
    node = ops.reduce_sum(value(f), axis, keep=keep)
    assert equal(node, reduced(node, f))


def test_a_sum_over_groups_keeps_their_scales_inside():
    x = tensor("a", 4, 6)
    f = form("a", "s", x, Pattern.blocks(2, WHOLE))
    with pytest.raises(Refused, match="changes along the summed axis"):
        reduced(ops.reduce_sum(value(f), 0), f)


@few
@given(g=st.sampled_from([2, 3]), m=sizes, n=sizes, block=st.booleans())
def test_a_sum_of_outer_products_is_a_matrix_product(g, m, n, block):
    column = ops.tensor("s", (Dim("g", g), Dim("m", m), Dim("1", 1)), F32)
    full = ops.repeat(column, (*column.shape[:2], Dim("n", n)))
    z = shared_z(full, Pattern((1, WHOLE, n if block else 1)))
    node = ops.reduce_sum(z, 0)
    result = outer_products(node)
    assert result.op == "matmul"
    assert equal(node, result)
    assert outer_products(ops.reduce_sum(column, 0)) is None


def shared_z(x, pattern):
    return ops.scaled(x, ops.tensor("z", ops.param_shape(x.shape, pattern), F32), pattern)


@few
@given(data=st.data(), m=sizes, n=sizes, k=sizes)
def test_signed_weights_as_unsigned_ones(data, m, n, k):
    a = ops.tensor("a", (Dim("m", m), Dim("k", k)), S8N)
    q = ops.tensor("q", (Dim("k", k), Dim("n", n)), U4)
    pattern = data.draw(blocks((k, n)))
    params = [ops.tensor(name, ops.param_shape(q.shape, pattern), U4) for name in "sz"]
    b = ops.mapped(q, Step("affine_zero", S8, (param("s", U4), param("z", U4)), pattern), params)
    node = ops.matmul(a, b)
    assert equal(node, unsigned(node))
    assert unsigned(ops.matmul(a, q)) is None


@pytest.mark.parametrize("op", ["scale", "shift", "affine_zero", "affine_min"])
@few
@given(data=st.data(), m=sizes, n=sizes)
def test_every_reading_of_a_qtile_is_its_value(op, data, m, n):
    q, pattern = tensor("q", m, n), data.draw(blocks((m, n)))
    names = "sz" if op.startswith("affine") else "p"
    step = Step(op, F32, tuple(param(name, F32) for name in names), pattern)
    x = ops.mapped(q, step, [ops.tensor(name, ops.param_shape(q.shape, pattern), F32) for name in names])
    forms = list(readings(x))
    assert len(forms) == {"scale": 1, "shift": 1, "affine_zero": 3, "affine_min": 2}[op]
    assert all(equal(x, value(f)) for f in forms)


def test_figure_3():
    """(6 - 2) × (-0.4) = -1.6: row 2, column 3 of a matrix in blocks of 3 x 2."""
    graph = program(lambda w: w, w=quantized(6, 4, chain=affine_zero(4, Pattern.blocks(3, 2))))
    codes = torch.zeros(6, 4, dtype=torch.uint8)
    codes[1, 2] = 6
    scale = torch.tensor([[1.0, -0.4], [1.0, 1.0]], dtype=torch.float64)
    zero = torch.tensor([[0, 2], [0, 0]], dtype=torch.uint8)
    [out] = interpret(graph, {"w": codes, "w.scale": scale, "w.zero": zero})
    assert out[1, 2].item() == pytest.approx(-1.6, abs=1e-3)  # the result is rounded to fp16


def test_operations_without_a_rule_say_so():
    x = value(form("a", "s", tensor("a", 2, 2), Pattern.tensor()))
    [refusal] = transformations(ops.function("silu", x))
    assert str(refusal) == "silu: no rule: its Qtile is dequantized before it"
    assert list(transformations(ops.function("silu", x.codes))) == []


def test_products_that_are_not_in_the_table_say_so():
    x, y = (value(form(name, "sz", tensor(name, 2, 2), Pattern.tensor())) for name in "xy")
    found = list(transformations(ops.mul(x, y)))
    rows = {outcome.row for outcome in found if isinstance(outcome, Rewrite)}
    assert rows == {"A×B_sz"}
    [refusal] = [outcome for outcome in found if isinstance(outcome, Refusal)]
    assert str(refusal) == "mul, A_sz×B_sz: a bias that meets a scale or a bias makes several products of one"
