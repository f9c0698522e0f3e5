"""Nodes of a QGraph: immutable, and equal where they compute the same from the same.

A Qtile is a node of kind "map": its first argument holds the codes, the others the parameters, and its
attribute is the `spec.Step` that makes values of codes. A chain of steps is a chain of such nodes. So a graph
says *where every scale and zero point is applied*, and a transformation moves map nodes towards the output.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from tessera.compiler.dims import Dim, Shape, sizes
from tessera.spec import Chain, DType, Float, Param, Pattern, Qtile, Step

MAP: Final = "map"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation, its result's shape and element type. Made by `ops`, which checks and infers."""

    op: str
    args: tuple["Node", ...]
    attrs: tuple[Any, ...]
    shape: Shape
    dtype: DType
    key: str = field(init=False)

    def __post_init__(self) -> None:
        own = (self.op, _plain(self.attrs), str(self.dtype), tuple((d.name, d.size) for d in self.shape))
        text = repr((own, [arg.key for arg in self.args]))
        object.__setattr__(self, "key", blake2b(text.encode(), digest_size=12).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_qtile(self) -> bool:
        return self.op == MAP

    @property
    def step(self) -> Step:
        """The mapping function of a Qtile."""
        assert self.op == MAP
        step: Step = self.attrs[0]
        return step

    @property
    def codes(self) -> "Node":
        """What a Qtile's step is applied to; the node itself otherwise."""
        return self.args[0] if self.op == MAP else self

    @property
    def params(self) -> tuple["Node", ...]:
        return self.args[1:] if self.op == MAP else ()

    def attr(self, index: int) -> Any:
        return self.attrs[index]

    def qtile(self) -> Qtile:
        """The description of a Qtile node in `spec`'s terms: shape and chain, parameters named in order.

        Raises ShapeError while an axis is symbolic.
        """
        steps: list[Step] = []
        node = self
        while node.op == MAP:
            steps.insert(0, node.step)
            node = node.args[0]
        named = tuple(
            Step(s.op, s.out, tuple(Param(f"{p.name}_{i}", p.chain) for p in s.params), s.pattern)
            for i, s in enumerate(steps)
        )
        return Qtile(sizes(self.shape), Chain(node.dtype, named))


def rounds(node: Node) -> bool:
    """Whether the node casts to integers what they may not hold."""
    is_cast = node.op == "cast" or (node.op == MAP and node.step.op == "cast")
    if not is_cast or isinstance(node.dtype, Float):
        return False
    source = node.args[0].dtype
    return isinstance(source, Float) or source.low < node.dtype.low or source.high > node.dtype.high


def _plain(value: object) -> object:
    """Attributes as they enter a key: a step without its parameters' names, which are for the reader."""
    match value:
        case Step():
            return value.op, str(value.out), _plain(value.pattern)
        case Pattern():
            return value.block, value.ragged
        case Dim():
            return value.name, value.size
        case tuple():
            return tuple(map(_plain, value))
    return str(value)


def walk(*roots: Node) -> Iterator[Node]:
    """Every node once, arguments before what uses them."""
    seen: set[str] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node.key not in seen:
                seen.add(node.key)
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
