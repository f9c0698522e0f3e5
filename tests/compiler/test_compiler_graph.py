"""Programs, their shapes and types, hashing, binding, printing; and what is refused by name."""

import pytest

from tessera.compiler import Dim, QGraph, concat, formula, program, propagate, quantized, skeleton, spec
from tessera.compiler.dims import agree, fixed, sizes
from tessera.compiler.errors import (
    BindError,
    DTypeError,
    NoInverseError,
    ParameterError,
    ProgramError,
    ShapeError,
)
from tessera.compiler.ops import mapped, matmul, quantize, tensor
from tessera.spec import (
    A8,
    BF16,
    F16,
    F32,
    S8,
    S8N,
    U4,
    Chain,
    Grid,
    Param,
    Pattern,
    Qtile,
    Step,
    affine_min,
    affine_zero,
    param,
    progressive,
    symmetric,
)


def linear(x, w):
    return x @ w.T


G128 = Pattern.blocks(1, 128)


def test_a_function_becomes_a_graph():
    graph = program(linear, x=spec("m", 256, dtype=F16), w=quantized(64, 256, chain=affine_zero(4, G128)))
    assert [n.attr(0) for n in graph.inputs] == ["x", "w", "w.scale", "w.zero"]
    assert formula(graph.outputs[0]) == "x·((w - w.zero)·w.scale)"
    [y] = graph.outputs
    assert [str(d) for d in y.shape] == ["m", "64"]
    assert y.dtype == F32
    assert "matmul" in str(graph)


def test_a_qtile_of_the_graph_is_that_of_spec():
    chain = progressive(G128)
    graph = program(lambda w: w, w=quantized(64, 256, chain=chain))
    tile = graph.outputs[0].qtile()
    assert isinstance(tile, Qtile)
    assert tile.bits == Qtile((64, 256), chain).bits
    assert [s.op for s in tile.chain.steps] == [s.op for s in chain.steps]


def test_nested_parameters_are_qtiles_themselves():
    six_bit = Param("scale", symmetric(Grid(6), Pattern.tensor()))
    chain = Chain(U4, (Step("scale", F16, (six_bit,), Pattern.blocks(1, 32)),))
    graph = program(lambda w: w, w=quantized(4, 64, chain=chain))
    assert {n.attr(0) for n in graph.inputs} == {"w", "w.scale", "w.scale.scale"}
    assert graph.outputs[0].params[0].is_qtile


def test_equal_programs_are_one_graph():
    def build(k=256):
        return program(linear, x=spec("m", k, dtype=F16), w=quantized(64, k, chain=affine_zero(4, G128)))

    assert build() == build()
    assert hash(build()) == hash(build())
    assert len({build().key, build().key, build(384).key}) == 2
    shared = program(lambda x, w: (x @ w.T) + (x @ w.T), x=spec(2, 3, dtype=F16), w=spec(4, 3, dtype=F16))
    assert [n.op for n in shared.nodes].count("matmul") == 1


def test_axes_are_bound_by_name_and_derived_ones_follow():
    graph = propagate(skeleton("w4a16-g128")).candidates[1].graph
    assert graph.axes() == {"m": None, "k": 4096, "n": 4096}
    small = graph.bind({"m": 3, "k": 256, "n": 5})
    [y] = small.outputs
    assert sizes(y.shape) == (3, 5)
    assert any(d.name == "k/128" and d.size == 2 for n in small.nodes for d in n.shape)
    with pytest.raises(BindError, match="no axis q"):
        graph.bind({"q": 1})
    with pytest.raises(ShapeError, match="axis m is symbolic"):
        sizes(graph.outputs[0].shape)
    with pytest.raises(ShapeError, match="blocks of 128 do not divide axis k=200"):
        graph.bind({"k": 200})


def test_derived_axes():
    k = Dim("k", 256)
    assert (k / 128).size == 2
    assert (k / 128) * fixed(128) == k
    assert (k + fixed(4)).size == 260
    assert (k + fixed(4)).bind({"k": 12}).size == 16
    assert (Dim("m") * k).bind({"m": 2}).size == 512
    assert not agree(Dim("m"), Dim("n"))
    assert agree(Dim("m"), Dim("m", 4))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x, w: x @ w, ShapeError, r"matmul: axis k=8 of \[m, k=8\] meets axis n=6 of \[n=6, k=8\]"),
        (lambda x, w: x + w, ShapeError, r"add: axis m of \[m, k=8\] meets axis n=6"),
        (lambda x, w: x.reshape("m", 3, 3) @ w.T, ShapeError, "reshape of .* elements are not"),
        (lambda x, w: w.transpose(0, 0), ShapeError, "transpose: .* is not an order of the 2 axes"),
        (lambda x, w: w.slice(1, 4, 9), ShapeError, r"slice \[4:9\] is outside axis k=8"),
        (lambda x, w: concat([x, w.T], 0), ShapeError, "concat: axis k=8 .* meets axis n=6"),
        (lambda x, w: x.cast(BF16) @ w.T, DTypeError, "matmul of bf16 and f16: cast one of them first"),
        (lambda x, w: x.cast(BF16) + x, DTypeError, "add of bf16 and f16"),
        (lambda x, w: x.take_rows(x), DTypeError, "gather: rows are integers of one axis"),
        (lambda x, w: None, ProgramError, "the program returns nothing"),
        (lambda x, w: 3, ProgramError, "returns int, not a tensor"),
        (lambda x, w: x * 2, ProgramError, "mul by int, not a tensor: make a constant an input"),
        (lambda x, w: x - 1.5, ProgramError, "sub of float"),
        (lambda x, w: x / 2, ProgramError, "div by int"),
        (lambda x, w: x @ [1], ProgramError, "matmul by list"),
        (lambda x, w: x.sum(2), ShapeError, r"sum: there is no axis 2 in \[m, k=8\]"),
        (lambda x, w: x.slice(-3, 0, 1), ShapeError, "slice: there is no axis -3"),
        (lambda x, w: concat([x, x], 2), ShapeError, "concat: there is no axis 2"),
        (lambda x, w: x.reshape("m", ""), ShapeError, "axis ''"),
        (lambda x, w: [3], ProgramError, "returns int, not a tensor"),
        (lambda x, w: x.quantize(affine_min(4, Pattern.channel())), NoInverseError, "no inverse at run time"),
        (
            lambda x, w: x.quantize(symmetric(S8N, Pattern.tensor())),
            NoInverseError,
            "symmetric scales per row",
        ),
    ],
)
def test_what_does_not_fit_is_named(function, error, message):
    with pytest.raises(error, match=message):
        program(function, x=spec("m", Dim("k", 8), dtype=F16), w=spec(Dim("n", 6), Dim("k", 8), dtype=F16))


def test_parameters_that_do_not_broadcast_are_named():
    w = tensor("w", (fixed(4), fixed(8)), U4)
    s = tensor("s", (fixed(4), fixed(3)), F16)
    step = Step("scale", F16, (param("s", F16),), Pattern.blocks(1, 4))
    with pytest.raises(
        ParameterError, match=r"s of scale has shape \[4, 3\]; pattern b\(1,4\) .* needs \[4, 2\]"
    ):
        mapped(w, step, [s])
    with pytest.raises(ParameterError, match="takes 1 parameters"):
        mapped(w, step, [])
    with pytest.raises(ParameterError, match="has 3 axes"):
        mapped(w, Step("scale", F16, (param("s", F16),), Pattern.tensor(3)), [s])


def test_a_graph_needs_an_output():
    with pytest.raises(ProgramError):
        QGraph(())


def test_integers_stay_integers_and_know_their_range():
    a = tensor("a", (fixed(2), fixed(3)), S8N)
    b = tensor("b", (fixed(3), fixed(2)), U4)
    assert matmul(a, b).dtype == Grid(32, signed=True)
    assert quantize(tensor("x", (fixed(2), fixed(3)), F16), A8).codes.dtype == S8N
    graph = program(lambda q, r: q * r - q, q=spec(2, dtype=S8), r=spec(2, dtype=U4))
    dtype = graph.outputs[0].dtype
    assert isinstance(dtype, Grid)
    assert dtype.low <= -128 * 15 - 127
    assert dtype.high >= 128 * 15


def test_printing_names_every_node():
    text = str(propagate(skeleton("w4a16-g128", n=256, k=256)).candidates[1].graph)
    assert "x : [m, k=256] f16" in text
    assert text.splitlines()[-1].startswith("return %")
    assert "map(" in text


def test_axes_count_from_the_last_too():
    def shapes(axis):
        graph = program(
            lambda x: (x.slice(axis, 0, 2), x.sum(axis), concat([x, x], axis)), x=spec(3, 4, dtype=F16)
        )
        return [sizes(out.shape) for out in graph.outputs]

    assert shapes(-1) == shapes(1) == [(3, 2), (3,), (3, 8)]
    assert shapes(-2) == shapes(0) == [(2, 4), (4,), (6, 4)]


@pytest.mark.parametrize("axis", ["", "5", "a b", -3, 2.5, True])
def test_an_axis_is_a_name_or_a_size(axis):
    with pytest.raises(ShapeError, match="axis"):
        spec(axis, 2, dtype=F16)


@pytest.mark.parametrize(("size", "shown"), [(5, "5"), (None, "symbolic")])
def test_an_axis_has_one_size_in_all_inputs(size, shown):
    with pytest.raises(ShapeError, match=f"axis m is 4 in x and {shown} in y"):
        program(
            lambda x, y: x.sum(0) + y.sum(0),
            x=spec(Dim("m", 4), 2, dtype=F32),
            y=spec(Dim("m", size), 2, dtype=F32),
        )


def test_tensors_of_another_program_are_refused():
    kept = []
    program(lambda x: kept.append(x) or x, x=spec(3, 3, dtype=F16))
    with pytest.raises(ProgramError, match="x belongs to another program"):
        program(lambda x: kept[0] @ x, x=spec(3, 4, dtype=F16))


def test_ragged_blocks_and_tables_say_what_they_need():
    ragged = affine_zero(4, Pattern.blocks(1, 64, ragged=True))
    with pytest.raises(ShapeError, match="ragged blocks of 64 need the size of axis k"):
        program(lambda w: w, w=quantized("n", "k", chain=ragged))
    step = Step("lookup", F16, (param("table", F16),), Pattern.tensor())
    with pytest.raises(DTypeError, match="lookup: codes are integers, not f16"):
        program(lambda x, table: x.mapped(step, table), x=spec(2, 2, dtype=F16), table=spec(65536, dtype=F16))
