"""Operations of a QGraph: one function each to make a node, one each to check it and infer its result.

Shapes are tuples of `Dim`. `rebuild` makes the same operation on other arguments, which is all that binding,
substitution and canonical form need.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tessera.compiler import types
from tessera.compiler.dims import ONE, Dim, Shape, agree, fixed, show
from tessera.compiler.errors import DTypeError, NoInverseError, ParameterError, ShapeError
from tessera.compiler.node import MAP, Node
from tessera.spec import F32, WHOLE, Chain, DType, Float, Grid, Param, Pattern, Step

Attrs = tuple[Any, ...]
Args = tuple[Node, ...]
Result = tuple[Shape, DType]


def make(op: str, args: Sequence[Node], attrs: Attrs = ()) -> Node:
    shape, dtype = _INFER[op](tuple(args), attrs)
    return Node(op, tuple(args), attrs, shape, dtype)


def rebuild(node: Node, args: Sequence[Node]) -> Node:
    """The operation of `node` on other arguments."""
    return node if tuple(args) == node.args else make(node.op, args, node.attrs)


# Leaves -----------------------------------------------------------------------------------------------------


def tensor(name: str, shape: Sequence[Dim], dtype: DType, *, constant: bool = False) -> Node:
    """An input. `constant` ones are known when compiling (weights): what depends on them alone is free."""
    return make("input", (), (name, tuple(shape), dtype, constant))


def const(value: int, rank: int) -> Node:
    """A number, of shape [1] * rank."""
    return make("const", (), (value, rank))


def count(dim: Dim, rank: int) -> Node:
    """The size of an axis as a number (the K of Table 2's J·J)."""
    return make("count", (), (dim, rank))


# Arithmetic -------------------------------------------------------------------------------------------------


def add(*terms: Node) -> Node:
    """Sum of tensors of one shape."""
    return terms[0] if len(terms) == 1 else make("add", terms)


def mul(left: Node, right: Node) -> Node:
    """Elementwise product of tensors of one shape."""
    return make("mul", (left, right))


def neg(x: Node) -> Node:
    return make("neg", (x,))


def matmul(left: Node, right: Node) -> Node:
    """[…, m, k] · […, k, n] -> […, m, n]; leading axes are batches and agree."""
    return make("matmul", (left, right))


def reduce_sum(x: Node, axis: int, *, keep: bool = False) -> Node:
    """Sum along `axis`, which is dropped or kept as size 1."""
    return make("reduce_sum", (x,), (_axis("sum", x, axis), keep))


def function(name: str, x: Node) -> Node:
    """An elementwise function (silu, reciprocal, …). No Qtile passes it: a barrier."""
    return make("function", (x,), (name,))


def cast(x: Node, dtype: DType) -> Node:
    """The same values in another float type; a cast to integers rounds and is a barrier."""
    return make("cast", (x,), (dtype,))


def quantize(x: Node, chain: Chain) -> Node:
    """Qtile of x [T, K] with codes and scales found at run time, per row of the last axis.

    Raises NoInverseError for any chain but a symmetric one with a scale per row: only that has an inverse
    that needs nothing besides x (`numerics.quantize_rows`).
    """
    rows = Pattern(tuple([1] * (x.rank - 1) + [WHOLE]))
    ok = [s.op for s in chain.steps] == ["scale"] and chain.steps[0].pattern == rows
    if not ok or not isinstance(chain.codes, Grid) or not chain.codes.signed:
        raise NoInverseError(f"quantize: {chain} has no inverse at run time: symmetric scales per row have")
    codes = make("quantize_codes", (x,), (chain.codes,))
    scale = make("quantize_scale", (x,), (chain.codes,))
    return mapped(codes, chain.steps[0], [scale])


# Mappings ---------------------------------------------------------------------------------------------------


def mapped(codes: Node, step: Step, params: Sequence[Node]) -> Node:
    """The Qtile of `codes` and one step. Raises ParameterError where a parameter does not fit its pattern."""
    return make(MAP, (codes, *params), (step,))


def scaled(x: Node, s: Node, pattern: Pattern) -> Node:
    return _step("scale", x, (s,), pattern)


def shifted(x: Node, z: Node, pattern: Pattern) -> Node:
    return _step("shift", x, (z,), pattern)


def affine(x: Node, s: Node, z: Node, pattern: Pattern) -> Node:
    """x * s + z."""
    return _step("affine_min", x, (s, z), pattern)


def _step(op: str, x: Node, params: tuple[Node, ...], pattern: Pattern) -> Node:
    out = types.mapped(op, x.dtype, tuple(p.dtype for p in params))
    described = tuple(Param(name, Chain(p.dtype)) for name, p in zip(("s", "z"), params, strict=False))
    return mapped(x, Step(op, out, described, pattern), params)


def param_shape(shape: Shape, pattern: Pattern) -> Shape:
    """Axes of a parameter shared as `pattern` says. Raises ShapeError where blocks do not divide an axis."""
    if len(shape) != pattern.rank:
        raise ParameterError(
            f"pattern {pattern} has {pattern.rank} axes, the tensor {show(shape)} has {len(shape)}"
        )
    if pattern.ragged:
        for dim, block in zip(shape, pattern.block, strict=True):
            if dim.size is None and block not in (1, WHOLE):
                raise ShapeError(f"ragged blocks of {block} need the size of axis {dim}")
        counts = pattern.counts(tuple(d.size or 0 for d in shape))
        return tuple(d if b == 1 else fixed(c) for d, b, c in zip(shape, pattern.block, counts, strict=True))
    return tuple(
        ONE if block == WHOLE else dim / block for dim, block in zip(shape, pattern.block, strict=True)
    )


# Movement ---------------------------------------------------------------------------------------------------


def transpose(x: Node, axes: Sequence[int]) -> Node:
    """Axis i of the result is axis `axes[i]` of x."""
    return make("transpose", (x,), (tuple(axes),))


def swap(x: Node) -> Node:
    """Transpose of the last two axes."""
    return transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def reshape(x: Node, shape: Sequence[Dim]) -> Node:
    return make("reshape", (x,), (tuple(shape),))


def slice_(x: Node, axis: int, start: int, stop: int) -> Node:
    return make("slice", (x,), (_axis("slice", x, axis), start, stop))


def concat(parts: Sequence[Node], axis: int) -> Node:
    axes = [_axis("concat", part, axis) for part in parts]
    return make("concat", parts, (axes[0],))


def gather(x: Node, rows: Node) -> Node:
    """Rows of x [R, …] picked by integers `rows` [T] -> [T, …]."""
    return make("gather", (x, rows))


def repeat(x: Node, shape: Sequence[Dim]) -> Node:
    """Every entry repeated along each axis until the result has `shape`."""
    return x if tuple(shape) == x.shape else make("repeat", (x,), (tuple(shape),))


def _axis(op: str, x: Node, axis: int) -> int:
    """`axis` counted from the first. Raises ShapeError where x has no such axis."""
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"{op}: there is no axis {axis} in {show(x.shape)}")
    return axis % x.rank


# Inference --------------------------------------------------------------------------------------------------


def _input(args: Args, attrs: Attrs) -> Result:
    _, shape, dtype, _ = attrs
    return shape, dtype


def _const(args: Args, attrs: Attrs) -> Result:
    value, rank = attrs
    return (ONE,) * rank, types.interval(min(0, value), max(0, value))


def _count(args: Args, attrs: Attrs) -> Result:
    return (ONE,) * attrs[1], Grid(31)


def _same(op: str, args: Args) -> Shape:
    first = args[0]
    for other in args[1:]:
        if other.rank != first.rank:
            raise ShapeError(
                f"{op} of {show(first.shape)} and {show(other.shape)}: {first.rank} and {other.rank} axes"
            )
        for left, right in zip(first.shape, other.shape, strict=True):
            if not agree(left, right):
                raise ShapeError(
                    f"{op}: axis {left} of {show(first.shape)} meets axis {right} of {show(other.shape)}"
                )
    return first.shape


def _add(args: Args, attrs: Attrs) -> Result:
    dtype = args[0].dtype
    for arg in args[1:]:
        dtype = types.added(dtype, arg.dtype)
    return _same("add", args), dtype


def _mul(args: Args, attrs: Attrs) -> Result:
    return _same("mul", args), types.multiplied(args[0].dtype, args[1].dtype)


def _matmul(args: Args, attrs: Attrs) -> Result:
    a, b = args
    if a.rank != b.rank or a.rank < 2:
        raise ShapeError(
            f"matmul of {show(a.shape)} and {show(b.shape)}: both need the same number of axes, 2 or more"
        )
    for left, right in zip((*a.shape[:-2], a.shape[-1]), (*b.shape[:-2], b.shape[-2]), strict=True):
        if not agree(left, right):
            raise ShapeError(f"matmul: axis {left} of {show(a.shape)} meets axis {right} of {show(b.shape)}")
    return (*a.shape[:-1], b.shape[-1]), types.contracted(a.dtype, b.dtype)


def _reduce_sum(args: Args, attrs: Attrs) -> Result:
    [x], (axis, keep) = args, attrs
    dtype = types.ACCUMULATOR if isinstance(x.dtype, Grid) else x.dtype
    return (*x.shape[:axis], *((ONE,) if keep else ()), *x.shape[axis + 1 :]), dtype


def _cast(args: Args, attrs: Attrs) -> Result:
    return args[0].shape, attrs[0]


def _function(args: Args, attrs: Attrs) -> Result:
    return args[0].shape, args[0].dtype if isinstance(args[0].dtype, Float) else F32


def _quantize_codes(args: Args, attrs: Attrs) -> Result:
    return args[0].shape, attrs[0]


def _quantize_scale(args: Args, attrs: Attrs) -> Result:
    return (*args[0].shape[:-1], ONE), F32


def _map(args: Args, attrs: Attrs) -> Result:
    codes, *params = args
    [step] = attrs
    if len(params) != len(step.params):
        raise ParameterError(f"{step.op} takes {len(step.params)} parameters, {len(params)} were given")
    if step.op == "lookup":
        if not isinstance(codes.dtype, Grid):
            raise DTypeError(f"lookup: codes are integers, not {codes.dtype}")
        wanted: Shape = (fixed(1 << codes.dtype.bits),)
    else:
        wanted = param_shape(codes.shape, step.pattern)
    for given, described in zip(params, step.params, strict=True):
        if len(given.shape) != len(wanted) or not all(map(agree, given.shape, wanted)):
            raise ParameterError(
                f"{described.name} of {step.op} has shape {show(given.shape)}; pattern {step.pattern} on "
                f"{show(codes.shape)} needs {show(wanted)}"
            )
    return codes.shape, step.out


def _transpose(args: Args, attrs: Attrs) -> Result:
    [x], [axes] = args, attrs
    if sorted(axes) != list(range(x.rank)):
        raise ShapeError(f"transpose: {axes} is not an order of the {x.rank} axes of {show(x.shape)}")
    return tuple(x.shape[a] for a in axes), x.dtype


def _reshape(args: Args, attrs: Attrs) -> Result:
    [x], [shape] = args, attrs
    old, new = _elements(x.shape), _elements(shape)
    if old != new:
        raise ShapeError(f"reshape of {show(x.shape)} to {show(shape)}: {old} elements are not {new}")
    return shape, x.dtype


def _elements(shape: Shape) -> str:
    """Number of elements: known sizes multiplied, symbolic axes by name and in order of names."""
    known, names = 1, []
    for dim in shape:
        if dim.size is None:
            names.append(dim.name)
        else:
            known *= dim.size
    return "*".join([*sorted(names), str(known)])


def _slice(args: Args, attrs: Attrs) -> Result:
    [x], (axis, start, stop) = args, attrs
    size = x.shape[axis].size
    if not 0 <= start < stop or (size is not None and stop > size):
        raise ShapeError(f"slice [{start}:{stop}] is outside axis {x.shape[axis]} of {show(x.shape)}")
    return (*x.shape[:axis], fixed(stop - start), *x.shape[axis + 1 :]), x.dtype


def _concat(args: Args, attrs: Attrs) -> Result:
    [axis] = attrs
    total, dtype = args[0].shape[axis], args[0].dtype
    for part in args[1:]:
        dtype = types.joined(dtype, part.dtype)
        _same("concat", (_without(args[0], axis), _without(part, axis)))
        total = total + part.shape[axis]
    return (*args[0].shape[:axis], total, *args[0].shape[axis + 1 :]), dtype


def _without(x: Node, axis: int) -> Node:
    return reduce_sum(x, axis)


def _gather(args: Args, attrs: Attrs) -> Result:
    x, rows = args
    if not isinstance(rows.dtype, Grid) or rows.rank != 1:
        raise DTypeError(f"gather: rows are integers of one axis, not {rows.dtype} {show(rows.shape)}")
    return (rows.shape[0], *x.shape[1:]), x.dtype


def _repeat(args: Args, attrs: Attrs) -> Result:
    [x], [shape] = args, attrs
    for old, new in zip(x.shape, shape, strict=True):
        fits = old == ONE or agree(old, new) or (old.size and new.size and new.size % old.size == 0)
        if not fits:
            raise ShapeError(f"repeat: axis {old} of {show(x.shape)} does not become {new} of {show(shape)}")
    return shape, x.dtype


_INFER: Final[dict[str, Callable[[Args, Attrs], Result]]] = {
    "input": _input,
    "const": _const,
    "count": _count,
    "add": _add,
    "mul": _mul,
    "neg": lambda args, attrs: (args[0].shape, types.negated(args[0].dtype)),
    "matmul": _matmul,
    "reduce_sum": _reduce_sum,
    "function": _function,
    "cast": _cast,
    "quantize_codes": _quantize_codes,
    "quantize_scale": _quantize_scale,
    MAP: _map,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "concat": _concat,
    "gather": _gather,
    "repeat": _repeat,
}
