"""Ranges of integer values in a graph: what fits an int8 operand, and which int32 sum may overflow."""

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Final

from tessera.compiler.graph import QGraph
from tessera.compiler.node import Node
from tessera.spec import Grid

Range = tuple[int, int]

KNOWN: Final[Mapping[str, Range]] = {"group_scale": (1, 16)}
"""Parameters (last part of the name) that hold less than their type: QoQ's level-1 values span at most 238,
so its group scales are at most 16 (`numerics.progressive`)."""

INT32: Final = 2**31 - 1


def ranges(graph: QGraph) -> dict[str, Range | None]:
    """Lowest and highest value of every node of a bound graph, by key; None for floats.

    A step's declared integer type is a promise that packers check, so a range never exceeds it.
    """
    found: dict[str, Range | None] = {}
    for node in graph.nodes:
        args = [found[a.key] for a in node.args]
        found[node.key] = _range(node, args) if isinstance(node.dtype, Grid) else None
    return found


def overflows(graph: QGraph) -> list[Node]:
    """Accumulated sums of a bound graph that may leave int32.

    A correction added afterwards may pass through what int32 does not hold: modulo 2^32 its sum is exact.
    """
    found = ranges(graph)
    sums = (n for n in graph.nodes if n.op in ("matmul", "reduce_sum"))
    return [n for n in sums if (r := found[n.key]) is not None and max(abs(r[0]), abs(r[1])) > INT32]


def _range(node: Node, args: list[Range | None]) -> Range:
    assert isinstance(node.dtype, Grid)
    declared = node.dtype.low, node.dtype.high
    if node.op == "input":
        return KNOWN.get(str(node.attr(0)).rsplit(".", 1)[-1], declared)
    if node.op == "const":
        return node.attr(0), node.attr(0)
    if node.op == "count":
        return node.attr(0).size, node.attr(0).size
    known = [r for r in args if r is not None]
    if node.op in ("quantize_codes", "function", "cast") or len(known) != len(args):
        return declared
    if node.is_qtile:
        return _mapped(node, known, declared)
    match node.op:
        case "add":
            return sum(r[0] for r in known), sum(r[1] for r in known)
        case "neg":
            return -known[0][1], -known[0][0]
        case "mul":
            return _times(known[0], known[1])
        case "matmul":
            return _scaled(_times(known[0], known[1]), node.args[0].shape[-1].size or 1)
        case "reduce_sum":
            return _scaled(known[0], node.args[0].shape[node.attr(0)].size or 1)
        case "concat":
            return min(r[0] for r in known), max(r[1] for r in known)
    return known[0]


def _mapped(node: Node, args: list[Range], declared: Range) -> Range:
    q, *p = args
    match node.step.op:
        case "scale":
            own = _times(q, p[0])
        case "shift":
            own = q[0] + p[0][0], q[1] + p[0][1]
        case "affine_zero":
            own = _times((q[0] - p[1][1], q[1] - p[1][0]), p[0])
        case "affine_min":
            low, high = _times(q, p[0])
            own = low + p[1][0], high + p[1][1]
        case "cast":
            own = q
        case _:
            own = declared
    promised = node.dtype.bits < 32 if isinstance(node.dtype, Grid) else False
    return (max(own[0], declared[0]), min(own[1], declared[1])) if promised else own


def _times(left: Range, right: Range) -> Range:
    ends = [prod(pair) for pair in product(left, right)]
    return min(ends), max(ends)


def _scaled(r: Range, n: int) -> Range:
    return n * r[0], n * r[1]
