"""Canonical form: graphs that differ only in order, nesting or where elements are moved become one.

Sums are flat and sorted, products sorted, nested scales ordered with the widest shared outermost, transposes
and reshapes merged, and Qtiles moved through whatever only moves elements (`rules.movement`).
"""

from collections.abc import Callable
from typing import Final

from tessera.compiler.dims import ONE
from tessera.compiler.errors import CompilerError
from tessera.compiler.graph import QGraph
from tessera.compiler.node import MAP, Node
from tessera.compiler.ops import add, mul, rebuild, repeat, reshape, scaled, transpose
from tessera.compiler.rules.movement import MOVEMENT
from tessera.spec import Float


class Canonical:
    """Canonical form of nodes, remembered between calls so that a search simplifies each node once."""

    def __init__(self) -> None:
        self._done: dict[str, Node] = {}

    def __call__(self, node: Node) -> Node:
        if (known := self._done.get(node.key)) is not None:
            return known
        new = rebuild(node, [self(arg) for arg in node.args])
        for simplify in _SIMPLIFY.get(new.op, ()):
            simpler = simplify(new)
            if simpler is not None and simpler != new:
                new = self(simpler)
                break
        self._done[node.key] = self._done[new.key] = new
        return new

    def graph(self, graph: QGraph) -> QGraph:
        for node in graph.nodes:  # arguments first, so that a deep graph is no deep recursion
            self(node)
        return QGraph(tuple(map(self, graph.outputs)))


def _flat_sum(node: Node) -> Node | None:
    terms = [t for arg in node.args for t in (arg.args if arg.op == "add" else (arg,))]
    return add(*sorted(terms, key=lambda n: n.key))


def _sorted_product(node: Node) -> Node | None:
    return mul(*sorted(node.args, key=lambda n: n.key))


def _double_negation(node: Node) -> Node | None:
    return node.args[0].args[0] if node.args[0].op == "neg" else None


def _ordered_scales(node: Node) -> Node | None:
    """(X_s)_t with s shared by more elements than t: exchanged, so that the widest is applied last."""
    inner = node.codes
    if node.step.op != "scale" or not inner.is_qtile or inner.step.op != "scale":
        return None
    if isinstance(node.dtype, Float) != isinstance(inner.dtype, Float) or _spread(node) <= _spread(inner):
        return None
    swapped = scaled(inner.codes, node.params[0], node.step.pattern)
    return scaled(swapped, inner.params[0], inner.step.pattern)


def _spread(node: Node) -> tuple[int, str]:
    """How finely a scale varies, then its identity: fine scales are applied first."""
    return sum(dim != ONE for dim in node.params[0].shape), node.params[0].key


def _one_transpose(node: Node) -> Node | None:
    axes, [x] = node.attr(0), node.args
    order = [a for a in axes if x.shape[a] != ONE]
    if order == sorted(order):  # only axes of one element move
        return reshape(x, node.shape)
    return transpose(x.args[0], [x.attr(0)[a] for a in axes]) if x.op == "transpose" else None


def _one_reshape(node: Node) -> Node | None:
    [x] = node.args
    if x.shape == node.shape:
        return x
    return reshape(x.args[0], node.shape) if x.op == "reshape" else None


def _one_repeat(node: Node) -> Node | None:
    [x] = node.args
    if x.shape == node.shape:
        return x
    return repeat(x.args[0], node.shape) if x.op == "repeat" else None


def _no_cast(node: Node) -> Node | None:
    return node.args[0] if node.args[0].dtype == node.dtype else None


def _moved(node: Node) -> Node | None:
    if not node.args[0].is_qtile:
        return None
    try:
        return MOVEMENT[node.op](node)
    except CompilerError:
        return None  # the search reports the reason


_SIMPLIFY: Final[dict[str, tuple[Callable[[Node], Node | None], ...]]] = {
    "add": (_flat_sum,),
    "mul": (_sorted_product,),
    "neg": (_double_negation,),
    MAP: (_ordered_scales,),
    "transpose": (_one_transpose, _moved),
    "reshape": (_one_reshape, _moved),
    "repeat": (_one_repeat, _moved),
    "slice": (_moved,),
    "concat": (_moved,),
    "gather": (_moved,),
    "cast": (_no_cast, _moved),
}
