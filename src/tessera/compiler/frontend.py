"""Python front end: a function over symbolic tensors becomes a QGraph.

n, k = Dim("n", 4096), Dim("k", 4096)
graph = program(lambda x, w: x @ w.T, x=spec("m", k, dtype=F16), w=quantized(n, k, chain=chain))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from tessera.compiler import ops
from tessera.compiler.dims import ONE, Dim, Shape, fixed
from tessera.compiler.errors import CompilerError, ProgramError, ShapeError
from tessera.compiler.graph import QGraph
from tessera.compiler.node import Node, walk
from tessera.spec import Chain, DType, Qtile, Step

Axis = Dim | str | int
"""An axis: a name (symbolic), a size (unnamed) or both (`Dim("k", 4096)`)."""


@dataclass(frozen=True, slots=True)
class Spec:
    """An input of a program: axes and storage. `constant` ones are known when compiling."""

    shape: Shape
    chain: Chain
    constant: bool


def spec(*shape: Axis, dtype: DType, constant: bool = False) -> Spec:
    """A plain input."""
    return Spec(axes(shape), Chain(dtype), constant)


def quantized(*shape: Axis, chain: Chain, constant: bool = True) -> Spec:
    """An input stored by `chain`; constant unless said otherwise, as weights are."""
    return Spec(axes(shape), chain, constant)


def axes(shape: Sequence[Axis]) -> Shape:
    return tuple(a if isinstance(a, Dim) else Dim(a) if isinstance(a, str) else fixed(a) for a in shape)


def program(function: Callable[..., "Tensor | Sequence[Tensor]"], /, **inputs: Spec) -> QGraph:
    """The QGraph of `function` called with a symbolic tensor for each input.

    A quantized input `w` brings its parameters as inputs of their own, named `w.scale` and so on. Raises
    ProgramError for a function that returns no tensor, or one of another program, ShapeError and DTypeError
    from operations.
    """
    given = {name: Tensor(_input(name, s)) for name, s in inputs.items()}
    result = function(**given)
    outputs = tuple(result) if isinstance(result, tuple | list) else () if result is None else (result,)
    graph = QGraph(tuple(_node(out, "the program returns") for out in outputs))
    known = {node for tensor in given.values() for node in walk(tensor.node)}
    if foreign := [str(n.attr(0)) for n in graph.inputs if n not in known]:
        raise ProgramError(f"{', '.join(foreign)} belongs to another program: pass it as an input")
    _one_size_each(graph)
    return graph


def _one_size_each(graph: QGraph) -> None:
    """Raises ShapeError where two inputs have an axis of one name and not of one size."""
    first: dict[str, tuple[Dim, Node]] = {}
    for node in graph.inputs:
        for dim in node.shape:
            other, owner = first.setdefault(dim.name, (dim, node))
            if other.size != dim.size:
                raise ShapeError(
                    f"axis {dim.name} is {other.size or 'symbolic'} in {owner.attr(0)} and "
                    f"{dim.size or 'symbolic'} in {node.attr(0)}"
                )


def _node(x: object, what: str) -> Node:
    """The node of a tensor. Raises ProgramError for anything else."""
    if not isinstance(x, Tensor):
        raise ProgramError(f"{what} {type(x).__name__}, not a tensor: make a constant an input")
    return x.node


def _input(name: str, s: Spec) -> Node:
    """Codes and parameters as inputs, and the steps between them; parameters may be Qtiles themselves."""
    node = ops.tensor(name, s.shape, s.chain.codes, constant=s.constant)
    for step in s.chain.steps:
        if step.op == "lookup":
            shape: Shape = (fixed(1 << node.dtype.bits),)
        else:
            shape = _param_axes(name, s.shape, step)
        params = [_input(f"{name}.{p.name}", Spec(shape, p.chain, s.constant)) for p in step.params]
        node = ops.mapped(node, step, params)
    return node


def _param_axes(name: str, shape: Shape, step: Step) -> Shape:
    try:
        return ops.param_shape(shape, step.pattern)
    except CompilerError as error:
        raise type(error)(f"{name}, step {step.op}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A symbolic tensor, plain or quantized. Operators are those of arrays; nothing is computed."""

    node: Node

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def qtile(self) -> Qtile:
        """What it is, in the terms of `spec`. Raises ShapeError while an axis is symbolic."""
        return self.node.qtile()

    def __matmul__(self, other: Self) -> Self:
        return self._new(ops.matmul(self.node, _node(other, "matmul by")))

    def __add__(self, other: Self) -> Self:
        return self._new(ops.add(*self._broadcast(_node(other, "add of"))))

    def __sub__(self, other: Self) -> Self:
        return self + self._new(ops.neg(_node(other, "sub of")))

    def __mul__(self, other: Self) -> Self:
        return self._new(ops.mul(*self._broadcast(_node(other, "mul by"))))

    def __truediv__(self, other: Self) -> Self:
        """By a plain tensor, or by a Qtile that is then dequantized."""
        return self * self._new(ops.function("reciprocal", _node(other, "div by")))

    def __neg__(self) -> Self:
        return self._new(ops.neg(self.node))

    @property
    def T(self) -> Self:
        """Last two axes exchanged."""
        return self._new(ops.swap(self.node))

    def transpose(self, *order: int) -> Self:
        return self._new(ops.transpose(self.node, order))

    def reshape(self, *shape: Axis) -> Self:
        return self._new(ops.reshape(self.node, axes(shape)))

    def slice(self, axis: int, start: int, stop: int) -> Self:
        return self._new(ops.slice_(self.node, axis, start, stop))

    def take_rows(self, rows: Self) -> Self:
        return self._new(ops.gather(self.node, _node(rows, "gather of")))

    def sum(self, axis: int) -> Self:
        return self._new(ops.reduce_sum(self.node, axis))

    def cast(self, dtype: DType) -> Self:
        return self._new(ops.cast(self.node, dtype))

    def apply(self, name: str) -> Self:
        """An elementwise function by name (silu, gelu, …)."""
        return self._new(ops.function(name, self.node))

    def quantize(self, chain: Chain) -> Self:
        """Codes and scales found at run time (W4A8's activations)."""
        return self._new(ops.quantize(self.node, chain))

    def mapped(self, step: Step, *params: Self) -> Self:
        """This tensor as codes of a further step with computed parameters."""
        return self._new(ops.mapped(self.node, step, [p.node for p in params]))

    def _broadcast(self, other: Node) -> tuple[Node, Node]:
        """Both at one shape: axes aligned from the last, missing ones and those of one element repeated."""
        rank = max(self.node.rank, other.rank)
        left, right = _padded(self.node, rank), _padded(other, rank)
        shape = tuple(b if a == ONE else a for a, b in zip(left.shape, right.shape, strict=True))
        return ops.repeat(left, _fit(left, shape)), ops.repeat(right, _fit(right, shape))

    def _new(self, node: Node) -> Self:
        return type(self)(node)


def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors joined along `axis`."""
    if not parts:
        raise ShapeError("concat of nothing")
    return Tensor(ops.concat([p.node for p in parts], axis))


def _padded(x: Node, rank: int) -> Node:
    return x if x.rank == rank else ops.reshape(x, (ONE,) * (rank - x.rank) + x.shape)


def _fit(x: Node, shape: Shape) -> Shape:
    """`shape` where x has one element, its own axis elsewhere: the operation names what disagrees."""
    return tuple(new if old == ONE else old for old, new in zip(x.shape, shape, strict=True))


__all__ = ["Axis", "Spec", "Tensor", "axes", "concat", "program", "quantized", "spec"]
