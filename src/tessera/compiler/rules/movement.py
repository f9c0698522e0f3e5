"""Qtiles through operations that only move elements: the mapping function stays, the pattern is kept, refined
or refused (QFactory section 4.2).

One function per operation, each from the node to the Qtile that equals it. They cost nothing and win nothing,
so `canonical` applies them wherever they hold, and the search never sees them as a choice.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from tessera.compiler import ops
from tessera.compiler.dims import ONE
from tessera.compiler.node import Node
from tessera.compiler.rules import patterns
from tessera.compiler.rules.refused import Refused
from tessera.spec import WHOLE, AlgebraError, Float, Pattern, Step

Move = Callable[[Node], Node]


def transpose(node: Node) -> Node:
    """The pattern's axes and the parameters' are transposed alike."""
    [x] = node.args
    axes = node.attr(0)
    return _moved(x, partial(ops.transpose, axes=axes), patterns.transposed(_pattern(x), axes))


def reshape(node: Node) -> Node:
    """A split at group boundaries refines the pattern; a merge keeps it where groups stay contiguous."""
    [x] = node.args
    pattern = patterns.reshaped(_pattern(x), x.shape, node.shape)
    params = ops.param_shape(node.shape, pattern)
    return _moved(x, lambda t: ops.reshape(t, node.shape), pattern, lambda p: ops.reshape(p, params))


def slice_(node: Node) -> Node:
    """Parameters are cut with the data. Refused where the cut falls inside a group."""
    [x] = node.args
    axis, start, stop = node.attrs
    size, pattern = x.shape[axis].size or stop, _pattern(x)
    try:
        span = pattern.index_range(axis, size, start, stop)
    except AlgebraError as error:
        raise Refused(str(error)) from error
    uncut = pattern.block[axis] == WHOLE
    return _moved(
        x,
        lambda t: ops.slice_(t, axis, start, stop),
        pattern,
        lambda p: p if uncut else ops.slice_(p, axis, *span),
    )


def concat(node: Node) -> Node:
    """Parameters are joined with the data; one that spans the axis becomes one per element along it.

    Refused for unequal steps (`spec.concat` says the same of checkpoints) and where a part ends inside a
    group.
    """
    first, axis = node.args[0], node.attr(0)
    for part in node.args:
        if not part.is_qtile or _like(part.step) != _like(first.step) or part.step.op == "lookup":
            raise Refused("parts with unequal or no linear mapping functions")
        block = part.step.pattern.block[axis]
        if block != WHOLE and (part.shape[axis].size or 1) % block:
            raise Refused(f"a part of {part.shape[axis]} ends inside a block of {block}")
    block = list(first.step.pattern.block)
    block[axis] = block[axis] if block[axis] != WHOLE else 1
    pattern = Pattern(tuple(block), first.step.pattern.ragged)
    params = [
        ops.concat(
            [
                ops.repeat(p, ops.param_shape(part.shape, pattern))
                for part, p in zip(node.args, row, strict=True)
            ],
            axis,
        )
        for row in zip(*(part.params for part in node.args), strict=True)
    ]
    codes = ops.concat([part.codes for part in node.args], axis)
    return ops.mapped(codes, replace(first.step, pattern=pattern), params)


def gather(node: Node) -> Node:
    """Rows bring their parameters along. Refused where a group spans several rows, but not all."""
    x, rows = node.args
    pattern = _pattern(x)
    block = pattern.block[0]
    if block not in (WHOLE, 1):
        raise Refused(f"rows share parameters in blocks of {block}")
    return _moved(
        x,
        lambda t: ops.gather(t, rows),
        pattern,
        lambda p: p if pattern.block[0] == WHOLE else ops.gather(p, rows),
    )


def repeat(node: Node) -> Node:
    """An axis of one element that is broadcast has one group. Refused where an entry of many is repeated."""
    [x] = node.args
    block = list(_pattern(x).block)
    for axis, (old, new) in enumerate(zip(x.shape, node.shape, strict=True)):
        if old == ONE or (old.size == 1 and old != new):
            block[axis] = WHOLE
        elif old != new and block[axis] != WHOLE:
            raise Refused(f"repeated along axis {old} with blocks of {block[axis]}")
    pattern = Pattern(tuple(block), x.step.pattern.ragged)
    return _moved(x, lambda t: ops.repeat(t, node.shape), pattern, lambda p: p)


def cast(node: Node) -> Node:
    """Rounding to a float type happens once, at the end, wherever the mapping is applied."""
    [x] = node.args
    if not isinstance(node.dtype, Float) or not isinstance(x.dtype, Float):
        raise Refused(f"from {x.dtype} to {node.dtype} rounds or reinterprets")
    return ops.mapped(x.codes, replace(x.step, out=node.dtype), x.params)


MOVEMENT: Final[dict[str, Move]] = {
    "transpose": transpose,
    "reshape": reshape,
    "slice": slice_,
    "concat": concat,
    "gather": gather,
    "repeat": repeat,
    "cast": cast,
}


def through(node: Node) -> Node:
    """The Qtile that equals `node`, a movement of a Qtile; the node itself where its argument is none."""
    return MOVEMENT[node.op](node) if node.args[0].is_qtile else node


def _moved(x: Node, move: Move, pattern: Pattern, move_param: Move | None = None) -> Node:
    """Codes moved, and parameters with them; a lookup table is shared by all elements and stays."""
    codes = move(x.codes)
    if x.step.op == "lookup":
        return ops.mapped(codes, replace(x.step, pattern=Pattern.tensor(codes.rank)), x.params)
    params = map(move_param or move, x.params)
    return ops.mapped(codes, replace(x.step, pattern=pattern), tuple(params))


def _pattern(x: Node) -> Pattern:
    """That of the step; for a lookup, whose table knows no axes, that of the tensor."""
    return Pattern.tensor(x.rank) if x.step.op == "lookup" else x.step.pattern


def _like(step: Step) -> tuple[object, ...]:
    return step.op, step.out, step.pattern, tuple(p.chain for p in step.params)
