"""Proof that two QGraphs compute the same.

First exactly, in a finite field, on random inputs (`arithmetic.FIELD`): the algebra is right or wrong,
whatever the numbers. Then in float64, where the graphs round differently: the difference must stay within the
error bound of both evaluations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Final

import torch
from torch import Tensor

from tessera.compiler.arithmetic import FIELD, FUNCTIONS, MAGNITUDE, PRIME, REAL
from tessera.compiler.errors import BindError, CompilerError, UnequalError
from tessera.compiler.graph import QGraph
from tessera.compiler.interpret import evaluate
from tessera.compiler.node import MAP, Node, rounds, walk
from tessera.spec import WHOLE, DType, Float, Grid

UNIT: Final = 2.0**-53
"""Unit roundoff of float64."""

_PRIMES: Final = (3, 5, 7, 11, 13)
_PRODUCTS: Final = ("mul", "matmul", MAP)
_ARITHMETIC: Final = ("add", "mul", "neg", "matmul", "reduce_sum", MAP)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`exact`: equal in the field. `error`: largest float64 difference over the sum of magnitudes behind it,
    which may not exceed `bound`.

    `error` and `bound` are None where a nonlinear function is applied to something computed: what rounding
    does there has no bound that holds for every function.
    """

    exact: bool
    error: float | None
    bound: float | None
    sizes: dict[str, int]

    @property
    def equal(self) -> bool:
        within = self.error is None or self.bound is None or self.error <= self.bound
        return self.exact and within


def verify(eager: QGraph, candidate: QGraph, *, seed: int = 0) -> Verdict:
    """Compare two graphs of the same inputs at small sizes that keep every group (or at their own where those
    are tied to numbers in the program). Graphs whose outputs differ in number, shape or float type are
    unequal; which integer type holds the same integers is free. Deterministic for a seed. Raises BindError
    where the candidate takes inputs that the eager graph has not.
    """
    if not set(candidate.inputs) <= set(eager.inputs):
        raise BindError(f"graphs of different inputs: {eager.signature()}; and {candidate.signature()}")
    sizes = small_sizes(eager, candidate)
    try:
        left, right = eager.bind(sizes), candidate.bind(sizes)
    except CompilerError:
        sizes = {name: size or sizes[name] for name, size in eager.axes().items()}
        left, right = eager.bind(sizes), candidate.bind(sizes)
    generator = torch.Generator().manual_seed(seed)
    points = {str(n.attr(0)): _point(n, left, generator) for n in left.inputs}
    if list(map(_kind, left.outputs)) != list(map(_kind, right.outputs)):
        return Verdict(False, None, None, sizes)
    exact = all(map(torch.equal, evaluate(left, points, FIELD), evaluate(right, points, FIELD)))
    error, bound = _rounding(left, right, generator)
    return Verdict(exact, error, bound, sizes)


def _kind(output: Node) -> tuple[tuple[int | None, ...], DType | None]:
    return tuple(d.size for d in output.shape), output.dtype if isinstance(output.dtype, Float) else None


def check(eager: QGraph, candidate: QGraph, *, seed: int = 0) -> None:
    """Raises UnequalError unless `verify` finds the graphs equal."""
    verdict = verify(eager, candidate, seed=seed)
    if not verdict.equal:
        raise UnequalError(
            f"the graphs differ at {verdict.sizes}: exact {verdict.exact}, float64 difference "
            f"{verdict.error} with a bound of {verdict.bound}\n{candidate}"
        )


def small_sizes(*graphs: QGraph) -> dict[str, int]:
    """Two groups along every axis that has groups, a small prime along the others."""
    steps: dict[str, int] = {}
    for graph in graphs:
        for name, step in _steps(graph):
            steps[name] = lcm(steps.get(name, 1), step)
    sizes = {}
    for index, (name, size) in enumerate(graphs[0].axes().items()):
        step = steps.get(name, 1)
        small = 2 * step if step > 1 else _PRIMES[index % len(_PRIMES)]
        sizes[name] = min(size, small) if size is not None and size % step == 0 else size or small
    return sizes


def _steps(graph: QGraph) -> Iterator[tuple[str, int]]:
    """(axis, block step) of every division of a named axis in the graph."""
    for node in graph.nodes:
        for dim in node.shape:
            if dim.of is not None and dim.of[0] == "/":
                yield dim.of[1].name, dim.of[2].size or 1
        if node.is_qtile and node.step.op != "lookup":
            for dim, block in zip(node.shape, node.step.pattern.block, strict=True):
                if block not in (WHOLE, 1):
                    parts = dim.of[2].size or 1 if dim.of is not None else 1
                    yield (dim.of[1].name if dim.of is not None else dim.name), block * parts


def _point(node: Node, graph: QGraph, generator: torch.Generator) -> Tensor:
    """A random point for an input: of the whole field, but an index only of its range."""
    shape = tuple(d.size or 0 for d in node.shape)
    high = _index_range(node, graph)
    return torch.randint(0, high or PRIME, shape, generator=generator, dtype=torch.int64)


def _index_range(node: Node, graph: QGraph) -> int | None:
    """Exclusive upper end where the input, as it is or moved, indexes a table or rows; None elsewhere."""
    for user in graph.nodes:
        if user.op == "gather" and node in walk(user.args[1]):
            return user.args[0].shape[0].size
        if user.is_qtile and user.step.op == "lookup" and node in walk(user.codes):
            return user.params[0].shape[0].size
    return None


def _rounding(left: QGraph, right: QGraph, generator: torch.Generator) -> tuple[float | None, float | None]:
    """Largest difference of the graphs in float64 over the magnitude of the sums behind it, and its bound.

    Each value is a sum of products of inputs; n roundings on the longest way make it wrong by at most
    n u / (1 - n u) times the sum of absolute products (Higham 2002, section 3.1), which MAGNITUDE computes.
    """
    if _crooked(left) or _crooked(right):
        return None, None
    values = {str(n.attr(0)): _sample(n, left, generator) for n in left.inputs}
    n = roundings(left) + roundings(right)
    error = 0.0
    results = evaluate(left, values, REAL), evaluate(right, values, REAL), _scale(left, right, values)
    for a, b, scale in zip(*results, strict=True):
        finite = a.isfinite() & b.isfinite()  # a division by zero has no error to bound
        off = ((a - b).abs() / scale.clamp_min(1e-300))[finite]
        error = max(error, float(off.max())) if off.numel() else error
    return error, n * UNIT / (1 - n * UNIT)


def _scale(left: QGraph, right: QGraph, values: dict[str, Tensor]) -> list[Tensor]:
    pairs = zip(evaluate(left, values, MAGNITUDE), evaluate(right, values, MAGNITUDE), strict=True)
    return [torch.maximum(a, b) for a, b in pairs]


def _crooked(graph: QGraph) -> bool:
    """Whether a function or rounding is applied to something computed: no error bound passes it."""
    for node in graph.nodes:
        if node.op in ("function", "quantize_codes", "quantize_scale") or rounds(node):
            computed = any(n.op in _ARITHMETIC for n in walk(*node.args))
            if computed or (node.op == "function" and node.attr(0) not in FUNCTIONS):
                return True
    return False


def roundings(graph: QGraph) -> int:
    """Most rounding factors (1 + δ) on any product of inputs in the outputs.

    An operation adds one, a sum as many as it has terms; factors of a product bring theirs together.
    """
    depth: dict[str, int] = {}
    for node in graph.nodes:
        own = 2 if node.is_qtile else 1
        if node.op == "matmul":
            own = node.args[0].shape[-1].size or 1
        elif node.op == "reduce_sum":
            own = node.args[0].shape[node.attr(0)].size or 1
        elif node.op == "add":
            own = len(node.args)
        below = [depth[a.key] for a in node.args]
        depth[node.key] = own + (sum(below) if node.op in _PRODUCTS else max(below, default=0))
    return max(depth[n.key] for n in graph.outputs)


def _sample(node: Node, graph: QGraph, generator: torch.Generator) -> Tensor:
    """Plausible values: codes of the whole grid, normal activations, scales of either sign."""
    shape = tuple(d.size or 0 for d in node.shape)
    if high := _index_range(node, graph):
        return torch.randint(0, high, shape, generator=generator)
    if isinstance(node.dtype, Grid):
        return torch.randint(node.dtype.low, node.dtype.high + 1, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


__all__ = ["Verdict", "check", "roundings", "small_sizes", "verify"]
