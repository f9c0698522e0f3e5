"""Algorithm 1: what it finds for the known formats, unaided; every candidate proved equal; a broken rule
caught.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest

from tessera.compiler import (
    Dim,
    check,
    concat,
    formula,
    program,
    propagate,
    quantized,
    skeleton,
    spec,
    verify,
)
from tessera.compiler.errors import BindError, UnequalError, UnknownSkeletonError
from tessera.compiler.rules import table
from tessera.compiler.skeletons import FORMATS, NAMES
from tessera.compiler.verify import small_sizes
from tessera.spec import (
    A8,
    F16,
    F32,
    U4,
    Chain,
    Grid,
    GroupSizeError,
    Pattern,
    RecipeError,
    Step,
    affine_zero,
    param,
    progressive,
    symmetric,
)


def formulas(graph):
    return [formula(c.graph.outputs[0]) for c in propagate(graph).candidates]


@pytest.mark.parametrize("extra", [{}, {"bias": True, "residual": True}], ids=["", "bias+residual"])
@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_of_every_skeleton_is_equal(name, extra):
    graph = skeleton(name, **extra)
    search = propagate(graph)
    assert search.complete
    assert len({c.graph.key for c in search.candidates}) == len(search.candidates)
    for candidate in search.candidates:
        check(graph, candidate.graph)


def test_w4a16_groups_find_the_deferred_graph():
    """(A·B)_s + (A·J)_z per group, with the row sums of A once per row: one column for each group."""
    found = formulas(skeleton("w4a16-g128"))
    assert "Σk/128 (x·J)_[-(w.scale*w.zero)] + Σk/128 (x·w)_[w.scale]" in found
    assert "Σk/128 ((x·J)_[-w.zero] + x·w)_[w.scale]" in found
    assert "(x·J)·(-(w.scale*w.zero)) + Σk/128 (x·w)_[w.scale]" in found
    search = propagate(skeleton("w4a16-g128"))
    deferred = next(c.graph for c in search.candidates if c.rows == ("A·B_sz",))
    [column] = {n for n in deferred.nodes if n.op == "reduce_sum" and n.attr(1)}
    assert [str(d) for d in column.shape] == ["k/128=32", "m", "1"]


def test_qoq_finds_row_sum_correction_and_the_graph_of_qserve():
    found = set(formulas(skeleton("qoq-g128")))
    scales = "_[w.scale]_[scale(x)]", "_[scale(x)]_[w.scale]"
    qserve = "(codes(x)·((w - w.group_zero)·w.group_scale))"
    corrected = "((codes(x)·J)·(-(w.group_scale*w.group_zero)) + codes(x)·w_[w.group_scale])"
    all_outside = (
        "(Σk/128 (codes(x)·J)_[-(w.group_scale*w.group_zero)] + Σk/128 (codes(x)·w)_[w.group_scale])"
    )
    ours = "(codes(x)·(w·w.group_scale + 128 - (w.group_scale*w.group_zero)) + (codes(x)·J)_[-128])"
    for core in (qserve, corrected, all_outside, ours):
        assert any(core + outer in found for outer in scales), core


def test_w8a8_is_fully_deferred():
    found = formulas(skeleton("w8a8"))
    assert len(found) == 4
    assert {"(codes(x)·w)_[w.scale]_[scale(x)]", "(codes(x)·w)_[scale(x)]_[w.scale]"} & set(found)


@pytest.mark.parametrize("name", ["nf4-g64", "lut4-g128"])
def test_a_lookup_cannot_be_deferred_and_says_so(name):
    search = propagate(skeleton(name))
    assert "lookup is not linear: nothing of it can leave the operand" in {r.reason for r in search.refusals}
    assert all("w.table[w]" in formula(c.graph.outputs[0]) for c in search.candidates)
    table_only = Chain(U4, (Step("lookup", F16, (param("table", F16),), Pattern.tensor()),))
    w = quantized(8, 64, chain=table_only)
    bare = propagate(program(lambda x, w: x @ w.T, x=spec("m", 64, dtype=F16), w=w))
    assert len(bare.candidates) == 1


def test_parameters_of_every_element_stay_on_the_weights():
    search = propagate(skeleton("zero4-i", n=8, k=8))
    assert len(search.candidates) == 1
    assert any("changes with every element" in r.reason for r in search.refusals)


def test_activations_with_a_zero_point_use_all_four_products():
    chain = affine_zero(8, Pattern.channel())
    graph = program(
        lambda x, w: x @ w.T,
        x=quantized("m", Dim("k", 64), chain=chain, constant=False),
        w=quantized(8, Dim("k", 64), chain=affine_zero(4, Pattern.channel())),
    )
    search = propagate(graph)
    for candidate in search.candidates:
        check(graph, candidate.graph)
    full = next(c.graph for c in search.candidates if c.rows == ("A_sz·B_sz",))
    for product in ("(x·w)_", "(J·w)_", "(x·J)_", "k_"):
        assert product in formula(full.outputs[0])


def test_a_barrier_keeps_what_is_before_it_apart():
    def gated(x, gate, up):
        q = x.quantize(A8)
        return (q @ gate.T).apply("silu") * (q @ up.T)

    w = quantized(8, 64, chain=progressive(Pattern.blocks(1, 32)))
    graph = program(gated, x=spec("m", 64, dtype=F16), gate=w, up=w)
    search = propagate(graph, max_candidates=400)
    assert not search.complete
    assert search.pending
    assert len(search.candidates) == 400
    assert "stopped by the budget" in str(search)
    assert any(r.op == "silu" for r in search.refusals)
    for candidate in search.candidates[::40]:
        assert verify(graph, candidate.graph).exact


def test_fused_and_sliced_weights_stay_qtiles():
    chain = affine_zero(4, Pattern.blocks(1, 32))

    def fused(x, q, k):
        return x @ concat([q, k], 0).T.slice(1, 4, 12)

    w = quantized(8, 64, chain=chain)
    graph = program(fused, x=spec("m", 64, dtype=F16), q=w, k=w)
    search = propagate(graph)
    assert len(search.candidates) == 7
    for candidate in search.candidates:
        check(graph, candidate.graph)


def test_the_search_is_deterministic():
    first, second = (propagate(skeleton("qoq-g128")) for _ in range(2))
    assert [c.graph.key for c in first.candidates] == [c.graph.key for c in second.candidates]
    assert [c.rows for c in first.candidates] == [c.rows for c in second.candidates]
    assert first.refusals == second.refusals
    assert first.eager == second.candidates[0].graph
    assert first.generated > len(first.candidates)


def _forgets(row):
    """The row with one parameter forgotten: the bias of an operand, or its scale where it has no other."""

    def broken(a, b):
        for operand in (b, a):
            if operand.z or operand.s:
                less = replace(operand, z=None) if operand.z else replace(operand, s=None)
                return row(a, less) if operand is b else row(less, b)
        raise AssertionError("no row is of two plain operands")

    return broken


def _both_affine(op):
    """A program whose two operands read as every form: s, z and sz."""
    chain = affine_zero(8, Pattern.channel())
    x = quantized(4, Dim("k", 6), chain=chain, constant=False)
    return program(op, x=x, w=quantized(4, Dim("k", 6), chain=chain))


@pytest.mark.parametrize("row", table.TABLE_2, ids="·".join)
def test_a_broken_row_of_the_matrix_table_is_caught(row):
    graph = _both_affine(lambda x, w: x @ w.T)
    with patch.dict(table.TABLE_2, {row: _forgets(table.TABLE_2[row])}):
        search = propagate(graph, max_candidates=16)
    name = "·".join(
        letter if kind == "plain" else f"{letter}_{kind}" for letter, kind in zip("AB", row, strict=True)
    )
    for candidate in search.candidates:
        assert verify(graph, candidate.graph).equal == (name not in candidate.rows), candidate.rows
    wrong = next(c for c in search.candidates if c.rows == (name,))
    with pytest.raises(UnequalError, match="exact False"):
        check(graph, wrong.graph)


def test_a_broken_row_of_the_addition_table_is_caught():
    graph = _both_affine(lambda x, w: x + w)
    right = table.TABLE_1["sz", "sz"]
    with patch.dict(table.TABLE_1, {("sz", "sz"): lambda a, b: right(a, replace(b, z=a.z))}):
        search = propagate(graph)
    wrong = [c for c in search.candidates if "A_sz+B_sz" in c.rows]
    assert wrong
    assert not any(verify(graph, c.graph).equal for c in wrong)


def test_a_swapped_scale_is_caught_by_the_field_and_by_float64():
    w = quantized(4, 8, chain=symmetric(A8.codes, Pattern.channel()))
    graph = program(lambda x, w: x @ w.T, x=spec("m", 8, dtype=F16), w=w)
    other = program(lambda x, w: -(x @ w.T), x=spec("m", 8, dtype=F16), w=w)
    verdict = verify(graph, other)
    assert not verdict.exact
    assert verdict.error > verdict.bound


def test_graphs_of_other_outputs_are_unequal_and_of_other_inputs_refused():
    x, w = spec("m", 8, dtype=F16), spec(8, 8, dtype=F16)
    graph = program(lambda x, w: x @ w, x=x, w=w)
    for other in (lambda x, w: x, lambda x, w: (x @ w, x), lambda x, w: (x @ w).cast(F16)):
        assert not verify(graph, program(other, x=x, w=w)).equal
    with pytest.raises(BindError, match=r"graphs of different inputs: x .* and y "):
        verify(graph, program(lambda y, w: y @ w, y=x, w=w))


def test_a_division_by_zero_hides_no_difference():
    """Integers are drawn from the whole of a small grid, zero included."""
    x, d = spec(64, dtype=F32), spec(64, dtype=Grid(1))
    graph = program(lambda x, d: x / d, x=x, d=d)
    assert verify(graph, graph).equal
    verdict = verify(graph, program(lambda x, d: -x / d, x=x, d=d))
    assert not verdict.exact
    assert verdict.error > verdict.bound


@pytest.mark.parametrize("budget", [-1, 0, 1])
def test_the_smallest_budget_leaves_the_eager_graph(budget):
    search = propagate(skeleton("w4a16-g128"), max_candidates=budget)
    assert len(search.candidates) == 1
    assert not search.complete


def test_outputs_keep_their_float_types():
    """NVFP4's two scales change places in canonical form, and a rule's scale computes in fp32."""
    graph = program(lambda w: w, w=quantized(4, 16, chain=FORMATS["nvfp4"](Pattern.tensor())))
    assert graph.outputs[0].dtype == F16
    for candidate in propagate(graph).candidates:
        assert candidate.graph.outputs[0].dtype == F16
        check(graph, candidate.graph)


def test_small_sizes_keep_two_groups():
    search = propagate(skeleton("zero4-b2x64"))
    assert small_sizes(*(c.graph for c in search.candidates)) == {"m": 3, "k": 128, "n": 4}
    assert verify(search.eager, search.candidates[-1].graph).sizes == {"m": 3, "k": 128, "n": 4}


def test_skeletons_that_do_not_exist_or_do_not_fit():
    with pytest.raises(UnknownSkeletonError, match="no skeleton 'nf5'"):
        skeleton("nf5")
    for name in ("sym4-q", "zero4-g0", "zero4-b0x2"):
        with pytest.raises(UnknownSkeletonError, match=r"one of sym1 to sym8, .* nf4, fp8"):
            skeleton(name)
    with pytest.raises(RecipeError):
        skeleton("w5a16")
    with pytest.raises(GroupSizeError, match="blocks of 128 do not divide k = 200"):
        skeleton("w4a16-g128", k=200)


def test_ragged_groups_stay_on_the_weights_and_say_why():
    ragged = affine_zero(4, Pattern.blocks(1, 64, ragged=True))
    graph = program(lambda x, w: x @ w.T, x=spec("m", 96, dtype=F16), w=quantized(8, 96, chain=ragged))
    search = propagate(graph)
    assert len(search.candidates) == 1
    assert any("ragged" in r.reason for r in search.refusals)
    assert verify(graph, search.eager).equal


def test_a_deep_program_is_no_deep_recursion():
    def deep(x, w):
        for _ in range(600):
            x = -x + w
        return x

    w = quantized(4, 4, chain=symmetric(A8.codes, Pattern.channel()))
    graph = program(deep, x=spec(4, 4, dtype=F16), w=w)
    search = propagate(graph, max_candidates=3)
    assert verify(graph, search.candidates[-1].graph).exact
