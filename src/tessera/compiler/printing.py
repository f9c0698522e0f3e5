"""QGraphs as text: one formula for the reader, or a listing of every node."""

from collections.abc import Callable, Sequence
from typing import Final

from tessera.compiler.dims import show
from tessera.compiler.graph import QGraph
from tessera.compiler.node import Node


def formula(node: Node) -> str:
    """The node as one expression in the notation of the seed: X_[s] is X scaled by s, X·J its row sums.

    Where elements are only moved (transposes, groups split off) is not shown; the listing shows it.
    """
    return _FORMULA[node.op](node) if node.op in _FORMULA else _call(node)


def _call(node: Node) -> str:
    return f"{node.op}({', '.join(map(formula, node.args))})"


def _tight(node: Node) -> str:
    """Parenthesised unless it binds tighter than a product."""
    while node.op in ("transpose", "reshape", "repeat"):
        node = node.args[0]
    text = formula(node)
    return f"({text})" if node.op in ("add", "matmul", "mul", "neg", "reduce_sum") else text


def _map(node: Node) -> str:
    q = _tight(node.codes)
    p = [formula(x) for x in node.params]
    match node.step.op:
        case "scale":
            return f"{q}_[{p[0]}]"
        case "shift":
            return f"({plus([formula(node.codes), p[0]])})"
        case "affine_zero":
            return f"(({formula(node.codes)} - {p[1]})·{p[0]})"
        case "affine_min":
            return f"({plus([f'{q}·{p[0]}', p[1]])})"
        case "lookup":
            return f"{p[0]}[{formula(node.codes)}]"
    return f"{node.step.op}({q})"


def plus(terms: Sequence[str]) -> str:
    """A sum; a term with a minus sign is subtracted."""
    first, *rest = sorted(terms, key=lambda t: t.startswith("-"))
    return first + "".join(f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in rest)


def _sum(node: Node) -> str:
    axis, keep = node.attrs
    dim = node.args[0].shape[axis].name
    if not keep:
        return f"Σ{dim} {_tight(node.args[0])}"
    return f"{_tight(node.args[0])}·J" if axis == node.rank - 1 else f"J·{_tight(node.args[0])}"


_FORMULA: Final[dict[str, Callable[[Node], str]]] = {
    "input": lambda n: str(n.attr(0)),
    "const": lambda n: str(n.attr(0)),
    "count": lambda n: str(n.attr(0).name),
    "map": _map,
    "matmul": lambda n: "·".join(map(_tight, n.args)),
    "add": lambda n: plus(sorted(map(formula, n.args), key=lambda t: (-len(t), t))),
    "mul": lambda n: "*".join(sorted(map(_tight, n.args))),
    "neg": lambda n: f"-{_tight(n.args[0])}",
    "reduce_sum": _sum,
    "function": lambda n: f"{n.attr(0)}({formula(n.args[0])})",
    "cast": lambda n: f"{n.dtype}({formula(n.args[0])})",
    "quantize_codes": lambda n: f"codes({formula(n.args[0])})",
    "quantize_scale": lambda n: f"scale({formula(n.args[0])})",
    "transpose": lambda n: formula(n.args[0]),
    "reshape": lambda n: formula(n.args[0]),
    "repeat": lambda n: formula(n.args[0]),
}


def listing(graph: QGraph) -> str:
    """One line a node: %i = op(arguments) attributes : shape type."""
    names: dict[str, str] = {}
    lines = []
    for node in graph.nodes:
        names[node.key] = node.attr(0) if node.op == "input" else f"%{len(names)}"
        if node.op == "input":
            lines.append(f"{names[node.key]} : {show(node.shape)} {node.dtype}")
            continue
        args = ", ".join(names[a.key] for a in node.args)
        attrs = "" if node.op in ("reshape", "repeat") else " ".join(map(_attr, node.attrs))
        lines.append(f"{names[node.key]} = {node.op}({args}) {attrs} : {show(node.shape)} {node.dtype}")
    lines.append(f"return {', '.join(names[n.key] for n in graph.outputs)}")
    return "\n".join(" ".join(line.split()) for line in lines)


def _attr(value: object) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else str(value)
