"""QGraph: a program over tensors and Qtiles, as the nodes of its outputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from tessera.compiler.dims import Dim, show
from tessera.compiler.errors import BindError, ProgramError
from tessera.compiler.node import Node, walk
from tessera.compiler.ops import make, rebuild


@dataclass(frozen=True)
class QGraph:
    """A directed acyclic graph given by its outputs; nodes that compute the same are one node.

    Equal and hashed by structure. Raises ProgramError where there is no output.
    """

    outputs: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ProgramError("the program returns nothing")

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node once, arguments first."""
        return tuple(walk(*self.outputs))

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op == "input")

    @property
    def key(self) -> str:
        return " ".join(n.key for n in self.outputs)

    def axes(self) -> dict[str, int | None]:
        """Named axes of the inputs and their sizes; None while symbolic."""
        return {
            dim.name: dim.size
            for node in self.inputs
            for dim in node.shape
            if not dim.is_fixed and dim.of is None
        }

    def replace(self, old: Node, new: Node) -> Self:
        """The graph with every use of `old` made a use of `new`."""
        return self.rewrite(lambda node: new if node == old else None)

    def rewrite(self, change: Callable[[Node], Node | None]) -> Self:
        """The graph with `change(node)` in place of each node for which that is not None, arguments first."""
        done: dict[str, Node] = {}
        for node in self.nodes:
            new = change(node)
            done[node.key] = rebuild(node, [done[a.key] for a in node.args]) if new is None else new
        return type(self)(tuple(done[n.key] for n in self.outputs))

    def bind(self, sizes: Mapping[str, int]) -> Self:
        """The graph with sizes of named axes put in (or changed). Raises BindError for unknown names."""
        if unknown := sizes.keys() - self.axes().keys():
            raise BindError(f"no axis {', '.join(sorted(unknown))}: the program has {', '.join(self.axes())}")
        if all(self.axes()[name] == size for name, size in sizes.items()):
            return self
        done: dict[str, Node] = {}
        for node in self.nodes:
            attrs = tuple(_bound(a, sizes) for a in node.attrs)
            done[node.key] = make(node.op, [done[a.key] for a in node.args], attrs)
        return type(self)(tuple(done[n.key] for n in self.outputs))

    def __str__(self) -> str:
        from tessera.compiler.printing import listing

        return listing(self)

    def signature(self) -> str:
        """Inputs with shapes and types, one line."""
        return ", ".join(f"{n.attr(0)} {show(n.shape)} {n.dtype}" for n in self.inputs)


def _bound(value: object, sizes: Mapping[str, int]) -> object:
    match value:
        case Dim():
            return value.bind(sizes)
        case tuple():
            return tuple(_bound(v, sizes) for v in value)
    return value
