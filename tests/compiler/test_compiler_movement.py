"""Qtiles through operations that move elements: exact, or refused where a group would break."""

import pytest
from algebra import blocks, equal, form, tensor, value
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.compiler import ops
from tessera.compiler.canonical import Canonical
from tessera.compiler.dims import ONE, Dim, fixed
from tessera.compiler.errors import CompilerError, ShapeError
from tessera.compiler.rules.movement import MOVEMENT, through
from tessera.compiler.rules.patterns import common, reshaped, together
from tessera.compiler.rules.refused import Refused
from tessera.spec import F16, F32, U4, WHOLE, Pattern, Step, param

few = settings(max_examples=40, deadline=None)
sizes = st.sampled_from([1, 2, 4, 6])


def qtile(data, kind, *shape):
    return value(form("q", kind, tensor("q", *shape), data.draw(blocks(shape))))


kinds = st.sampled_from(["s", "z", "sz"])


def kept(node):
    """The moved Qtile: equal, and a Qtile still, with what moves now moving the codes."""
    result = through(node)
    assert result.is_qtile
    assert equal(node, result)
    return result


@few
@given(data=st.data(), kind=kinds, shape=st.tuples(sizes, sizes, sizes), axes=st.permutations(range(3)))
def test_transpose_keeps_the_pattern(data, kind, shape, axes):
    x = qtile(data, kind, *shape)
    block = kept(ops.transpose(x, axes)).step.pattern.block
    assert block == tuple(x.step.pattern.block[a] for a in axes)


@few
@given(data=st.data(), kind=kinds, rows=sizes, groups=st.sampled_from([2, 3]), group=st.sampled_from([2, 4]))
def test_split_at_group_boundaries_refines(data, kind, rows, groups, group):
    x = value(form("q", kind, tensor("q", rows, groups * group), Pattern.blocks(1, group)))
    split = kept(ops.reshape(x, (x.shape[0], fixed(groups), fixed(group))))
    assert split.step.pattern.block == (1, 1, WHOLE)
    assert kept(ops.reshape(split, x.shape)).step.pattern.block[1] == group


@few
@given(
    data=st.data(), kind=kinds, shape=st.tuples(sizes, sizes, sizes), target=st.sampled_from([0, 1, 2, 3, 4])
)
def test_reshapes_keep_or_refuse(data, kind, shape, target):
    x = qtile(data, kind, *shape)
    a, b, c = x.shape
    forms = [
        (fixed(a.size * b.size), c),
        (a, fixed(b.size * c.size)),
        (fixed(a.size * b.size * c.size),),
        (ONE, a, b, c),
        (fixed(a.size * b.size // 2), fixed(2 * c.size)) if a.size * b.size % 2 == 0 else (a, b, ONE, c),
    ]
    node = ops.reshape(x, forms[target])
    try:
        result = through(node)
    except Refused:
        assert target not in (3,)
        return
    assert equal(node, result)


@pytest.mark.parametrize(
    ("block", "old", "new", "wanted"),
    [
        ((1, WHOLE, 2), (2, 1, 4), (2, 4), (1, 2)),
        ((1, 2), (2, 4), (2, 1, 4), (1, WHOLE, 2)),
        ((1, 2), (2, 8), (2, 2, 4), (1, 1, 2)),
        ((1, 4), (2, 8), (2, 2, 2, 2), (1, 1, WHOLE, WHOLE)),
    ],
)
def test_blocks_of_reshaped_axes(block, old, new, wanted):
    assert reshaped(Pattern(block), tuple(map(fixed, old)), tuple(map(fixed, new))).block == wanted


def test_reshape_refuses_groups_that_straddle():
    with pytest.raises(Refused, match="straddle"):
        reshaped(Pattern.blocks(1, 6), (fixed(2), fixed(12)), (fixed(2), fixed(3), fixed(4)))
    with pytest.raises(Refused, match="not contiguous"):
        reshaped(Pattern.blocks(2, 2), (fixed(4), fixed(4)), (fixed(16),))
    with pytest.raises(Refused, match="symbolic axis"):
        reshaped(Pattern.blocks(1, 4), (Dim("m"), fixed(4)), (fixed(4), Dim("m2")))
    with pytest.raises(Refused, match="ragged"):
        reshaped(Pattern.blocks(1, 4, ragged=True), (fixed(2), fixed(6)), (fixed(12),))


@few
@given(data=st.data(), kind=kinds, shape=st.tuples(sizes, sizes), axis=st.integers(0, 1))
def test_slice_cuts_parameters_or_refuses(data, kind, shape, axis):
    x = qtile(data, kind, *shape)
    start = data.draw(st.integers(0, shape[axis] - 1))
    stop = data.draw(st.integers(start + 1, shape[axis]))
    node = ops.slice_(x, axis, start, stop)
    block = x.step.pattern.block[axis]
    if block != WHOLE and (start % block or (stop % block and stop != shape[axis])):
        with pytest.raises(Refused, match="cuts a block"):
            through(node)
    else:
        kept(node)


@few
@given(data=st.data(), kind=kinds, rows=st.tuples(sizes, sizes), columns=sizes, axis=st.integers(0, 1))
def test_concat_promotes_what_spans_the_axis(data, kind, rows, columns, axis):
    parts = []
    for i, n in enumerate(rows):
        shape = (n, columns) if axis == 0 else (columns, n)
        codes = ops.tensor(f"q{i}", tuple(map(fixed, shape)), F32)
        parts.append(value(form(f"q{i}", kind, codes, data.draw(blocks(shape)))))
    node = ops.concat(parts, axis)
    if parts[0].step.pattern != parts[1].step.pattern:
        with pytest.raises(Refused, match="unequal"):
            through(node)
        return
    assert kept(node).step.pattern.block[axis] != WHOLE


def test_concat_refuses_a_seam_inside_a_group():
    parts = [
        value(form(n, "s", ops.tensor(n, (fixed(2), fixed(8)), F32), Pattern.blocks(1, 4))) for n in "ab"
    ]
    kept(ops.concat(parts, 1))
    with pytest.raises(Refused, match="unequal or no linear"):
        through(ops.concat([parts[0], ops.neg(parts[1].codes)], 0))


@few
@given(data=st.data(), kind=kinds, rows=sizes, columns=sizes)
def test_gather_takes_parameters_along_or_refuses(data, kind, rows, columns):
    x = qtile(data, kind, rows, columns)
    index = ops.tensor("rows", (Dim("t", 3),), U4)
    node = ops.gather(x, index)
    if x.step.pattern.block[0] not in (WHOLE, 1):
        with pytest.raises(Refused, match="blocks of"):
            through(node)
        return
    result = through(node)
    assert result.codes.op == "gather"
    assert result.step == x.step


def test_repeat_broadcasts_one_group_only():
    x = value(form("q", "s", tensor("q", 1, 4), Pattern.blocks(1, 2)))
    assert kept(ops.repeat(x, (fixed(5), x.shape[1]))).step.pattern.block == (WHOLE, 2)
    with pytest.raises(Refused, match="repeated along axis"):
        through(ops.repeat(x, (fixed(1), fixed(8))))


def test_cast_between_floats_moves_and_into_integers_does_not():
    x = value(form("q", "s", tensor("q", 2, 2), Pattern.tensor()))
    assert kept(ops.cast(x, F16)).dtype == F16
    with pytest.raises(Refused, match="rounds"):
        through(ops.cast(x, U4))


@pytest.mark.parametrize("move", ["transpose", "reshape", "slice", "repeat", "gather"])
def test_a_lookup_moves_whole(move):
    q = ops.tensor("q", (fixed(1), fixed(4)), U4)
    step = Step("lookup", F16, (param("table", F16),), Pattern.tensor())
    x = ops.mapped(q, step, [ops.tensor("table", (fixed(16),), F16)])
    nodes = {
        "transpose": ops.swap(x),
        "reshape": ops.reshape(x, (fixed(2), fixed(2))),
        "slice": ops.slice_(x, 1, 1, 3),
        "repeat": ops.repeat(x, (fixed(3), fixed(4))),
        "gather": ops.gather(x, ops.tensor("rows", (fixed(2),), U4)),
    }
    result = MOVEMENT[move](nodes[move])
    assert result.step.op == "lookup"
    assert result.params == x.params
    assert result.codes.op == move


@few
@given(data=st.data(), shape=st.tuples(sizes, sizes))
def test_common_pattern_is_the_gcd_and_parameters_are_broadcast(data, shape):
    x = tensor("x", *shape)
    left, right = (form(n, "s", x, data.draw(blocks(shape))) for n in "ab")
    fine = common(left.s.pattern, right.s.pattern)
    for a, b, c in zip(left.s.pattern.block, right.s.pattern.block, fine.block, strict=True):
        assert (c == WHOLE) == (a == b == WHOLE)
        assert c == WHOLE or all(p % c == 0 for p in (a, b))
    for before, after in zip((left.s, right.s), together(left.s, right.s, x.shape), strict=True):
        assert after.pattern == fine
        assert equal(ops.scaled(x, *before), ops.scaled(x, *after))


def test_example_of_the_seed_blocks_of_two_sizes():
    assert common(Pattern.blocks(4, 6), Pattern.blocks(6, 4)) == Pattern.blocks(2, 2)
    with pytest.raises(Refused, match="ragged"):
        common(Pattern.blocks(1, 4, ragged=True), Pattern.blocks(1, 2))


def test_canonical_form_finds_the_same_graph_by_different_ways():
    canonical = Canonical()
    a, b, c = (tensor("x", 4, 6) for _ in range(3))
    b, c = ops.neg(b), ops.mul(b, c)
    assert canonical(ops.add(a, ops.add(b, c))) == canonical(ops.add(ops.add(c, a), b))
    assert canonical(ops.mul(a, b)) == canonical(ops.mul(b, a))
    assert canonical(ops.swap(ops.swap(a))) == canonical(a)
    assert canonical(ops.neg(ops.neg(a))) == canonical(a)
    assert canonical(ops.reshape(ops.reshape(a, (fixed(24),)), a.shape)) == canonical(a)
    s, t = Pattern.channel(), Pattern.channel(axis=1)
    scale = {p: ops.tensor(str(p), ops.param_shape(a.shape, p), F32) for p in (s, t)}
    one = ops.scaled(ops.scaled(a, scale[s], s), scale[t], t)
    two = ops.scaled(ops.scaled(a, scale[t], t), scale[s], s)
    assert one != two
    assert canonical(one) == canonical(two)
    assert equal(one, canonical(one))


def test_a_shape_that_does_not_divide_is_named():
    with pytest.raises(ShapeError, match=r"blocks of 4 do not divide axis q1=6"):
        value(form("q", "s", tensor("q", 2, 6), Pattern.blocks(1, 4)))
    with pytest.raises(CompilerError):
        ops.reshape(tensor("q", 2, 6), (fixed(5),))
