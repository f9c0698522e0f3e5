"""Any QGraph computed in torch on the CPU: slow and exact, so that a program without a kernel still runs."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from tessera.compiler.arithmetic import REAL, Arithmetic
from tessera.compiler.dims import show, sizes
from tessera.compiler.errors import BindError
from tessera.compiler.graph import QGraph
from tessera.compiler.node import MAP, Node, rounds
from tessera.numerics import FLOAT_DTYPES, QTensor, code_dtype
from tessera.numerics.blocks import spread
from tessera.spec import Float, Grid

log = logging.getLogger(__name__)


def interpret(graph: QGraph, inputs: Mapping[str, Tensor | QTensor]) -> tuple[Tensor, ...]:
    """Outputs of the graph for `inputs` by name; a quantized input is one QTensor, its parameters included.

    Computed in float64 and rounded once to each output's type. Logs that this is no kernel. Raises BindError
    for inputs that are missing, unknown, of another shape than the program says, not of its integers, or on
    several devices, and for gathered rows that do not exist.
    """
    values = dict(_flat(inputs))
    bound = graph.bind(_sizes(graph, values))
    log.warning(
        "interpreted in torch, slowly: no kernel computes %d operations of this program", len(bound.nodes)
    )
    try:
        results = evaluate(bound, values, REAL)
    except IndexError as error:
        raise BindError(f"gather: {error}") from error
    return tuple(r.to(_dtype(node)) for r, node in zip(results, bound.outputs, strict=True))


def evaluate(graph: QGraph, values: Mapping[str, Tensor], arithmetic: Arithmetic) -> tuple[Tensor, ...]:
    """Outputs of a bound graph in `arithmetic`, for every input node's tensor by name."""
    done: dict[str, Tensor] = {}
    for node in graph.nodes:
        args = [done[a.key] for a in node.args]
        if node.op == "input":
            done[node.key] = arithmetic.load(values[str(node.attr(0))])
        else:
            done[node.key] = _EVALUATE[node.op](arithmetic, node, *args)
    return tuple(done[n.key] for n in graph.outputs)


def _map(m: Arithmetic, node: Node, q: Tensor, *params: Tensor) -> Tensor:
    """One step of `spec`, with parameters spread over the elements that share them."""
    step = node.step
    if step.op == "cast":
        return _cast(m, node, q)
    if step.op == "lookup":
        return params[0][m.index(q)]
    p = [spread(x, step.pattern, q.shape) for x in params]
    match step.op, p:
        case "scale", [s]:
            return m.mul(q, s)
        case "shift", [z]:
            return m.add(q, z)
        case "affine_min", [s, z]:
            return m.add(m.mul(q, s), z)
        case _:
            s, z = p
            return m.mul(m.add(q, m.neg(z)), s)


def _cast(m: Arithmetic, node: Node, x: Tensor) -> Tensor:
    return m.round(x, node.dtype) if isinstance(node.dtype, Grid) and rounds(node) else x


def _sum_terms(m: Arithmetic, node: Node, *terms: Tensor) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = m.add(total, term)
    return total


def _number(m: Arithmetic, node: Node) -> Tensor:
    value = node.attr(0) if node.op == "const" else sizes((node.attr(0),))[0]
    return m.load(torch.full((1,) * node.rank, value, dtype=torch.int64))


def _repeat(m: Arithmetic, node: Node, x: Tensor) -> Tensor:
    for axis, (old, new) in enumerate(zip(x.shape, sizes(node.shape), strict=True)):
        x = x.repeat_interleave(new // old, axis) if old != new else x
    return x


_EVALUATE: Final[dict[str, Callable[..., Tensor]]] = {
    "const": _number,
    "count": _number,
    "add": _sum_terms,
    "mul": lambda m, node, a, b: m.mul(a, b),
    "neg": lambda m, node, x: m.neg(x),
    "matmul": lambda m, node, a, b: m.matmul(a, b),
    "reduce_sum": lambda m, node, x: m.total(x, *node.attrs),
    "function": lambda m, node, x: m.function(node.attr(0), x),
    "cast": _cast,
    "quantize_codes": lambda m, node, x: m.quantize(x, node.attr(0))[0],
    "quantize_scale": lambda m, node, x: m.quantize(x, node.attr(0))[1],
    MAP: _map,
    "transpose": lambda m, node, x: x.permute(node.attr(0)),
    "reshape": lambda m, node, x: x.reshape(sizes(node.shape)),
    "slice": lambda m, node, x: x.narrow(node.attr(0), node.attr(1), node.attr(2) - node.attr(1)),
    "concat": lambda m, node, *parts: torch.cat(parts, node.attr(0)),
    "gather": lambda m, node, x, rows: x.index_select(0, m.index(rows)),
    "repeat": _repeat,
}


def _flat(inputs: Mapping[str, Tensor | QTensor]) -> Iterator[tuple[str, Tensor]]:
    for name, value in inputs.items():
        if isinstance(value, QTensor):
            yield name, value.codes
            yield from _flat({f"{name}.{key}": param for key, param in value.params.items()})
        elif isinstance(value, Tensor):
            yield name, value
        else:
            raise BindError(f"{name} is of type {type(value).__name__}: give a torch tensor or a QTensor")


def _sizes(graph: QGraph, values: Mapping[str, Tensor]) -> dict[str, int]:
    """Sizes of named axes as the inputs have them."""
    wanted = {str(n.attr(0)): n for n in graph.inputs}
    if missing := wanted.keys() - values.keys():
        raise BindError(
            f"inputs {', '.join(sorted(missing))} are missing: the program takes {graph.signature()}"
        )
    if unknown := values.keys() - wanted.keys():
        raise BindError(
            f"the program has no input {', '.join(sorted(unknown))}: it takes {graph.signature()}"
        )
    if len(devices := {str(t.device) for t in values.values()}) > 1:
        raise BindError(f"inputs are on several devices ({', '.join(sorted(devices))}): move them to one")
    found: dict[str, int] = {}
    for name, node in wanted.items():
        shape = tuple(values[name].shape)
        fits = len(shape) == node.rank
        for dim, size in zip(node.shape, shape, strict=False):
            if dim.size is None and dim.of is None:
                found.setdefault(dim.name, size)
            fits = fits and dim.bind(found).size == size
        if not fits:
            raise BindError(f"{name} has shape {shape}, the program says {show(node.shape)}")
        if isinstance(node.dtype, Grid):
            _require_integers(name, values[name], node.dtype)
    return found


def _require_integers(name: str, x: Tensor, grid: Grid) -> None:
    if x.is_floating_point() and not x.double().frac().eq(0).all():
        raise BindError(f"{name} is {x.dtype} with fractions, the program says {grid}")
    low, high = (int(x.min()), int(x.max())) if x.numel() else (grid.low, grid.high)
    if low < grid.low or high > grid.high:
        raise BindError(f"{name} holds {low} to {high}, {grid} takes {grid.low} to {grid.high}")


def _dtype(node: Node) -> torch.dtype:
    """Torch type of an output; float32 for float types that torch does not hold."""
    if isinstance(node.dtype, Float):
        return FLOAT_DTYPES.get(node.dtype.name, torch.float32)
    return code_dtype(node.dtype)
