"""Group pattern transformation (QFactory section 4.2): patterns through operations, and patterns of two
Qtiles.
"""

from collections.abc import Sequence
from math import gcd, prod

from tessera.compiler.dims import ONE, Shape, agree, show
from tessera.compiler.ops import param_shape, repeat
from tessera.compiler.rules.forms import Shared
from tessera.compiler.rules.refused import Refused
from tessera.spec import WHOLE, Pattern


def common(left: Pattern, right: Pattern) -> Pattern:
    """Coarsest pattern that both can be refined to: the gcd of the block steps of every axis.

    Raises Refused for ragged patterns that differ: the short last block has no common step.
    """
    if left == right:
        return left
    if left.ragged or right.ragged:
        raise Refused(f"patterns {left} and {right}: a ragged pattern meets only itself")
    return Pattern(tuple(gcd(a, b) for a, b in zip(left.block, right.block, strict=True)))


def refine(param: Shared, pattern: Pattern, shape: Shape) -> Shared:
    """The parameter broadcast to a finer pattern on data of `shape`."""
    return Shared(repeat(param.value, param_shape(shape, pattern)), pattern)


def together(left: Shared, right: Shared, shape: Shape) -> tuple[Shared, Shared]:
    """Both parameters at their common pattern."""
    pattern = common(left.pattern, right.pattern)
    return refine(left, pattern, shape), refine(right, pattern, shape)


def transposed(pattern: Pattern, axes: Sequence[int]) -> Pattern:
    return Pattern(tuple(pattern.block[a] for a in axes), pattern.ragged)


def reshaped(pattern: Pattern, old: Shape, new: Shape) -> Pattern:
    """Pattern of the same groups after a reshape. Raises Refused where a group is no block any more."""
    if pattern.ragged:
        raise Refused(f"{show(old)} with ragged pattern {pattern}")
    block: list[int] = []
    for old_axes, new_axes in segments(old, new):
        own = [old[a] for a in old_axes]
        blocks = [pattern.block[a] for a in old_axes]
        if len(old_axes) == len(new_axes) == 1:
            block += blocks
            continue
        merged = _merge([d.size or 0 for d in own], blocks, f"{show(old)} with pattern {pattern}")
        block += _split(merged, [new[a].size or 0 for a in new_axes], f"{show(new)} of pattern {pattern}")
    return Pattern(tuple(block))


def segments(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Runs of old and new axes that hold the same elements; an axis of one element may face nothing.

    Raises Refused where a symbolic axis would be split or merged.
    """
    out: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        if agree(old[i], new[j]):
            out.append(([i], [j]))
            i, j = i + 1, j + 1
            continue
        if old[i] == ONE or new[j] == ONE:
            out.append(([i], []) if old[i] == ONE else ([], [j]))
            i, j = i + (old[i] == ONE), j + (old[i] != ONE)
            continue
        left, right = [i], [j]
        i, j = i + 1, j + 1
        while (a := _elements(old, left)) != (b := _elements(new, right)):
            if a < b and i < len(old):
                left, i = [*left, i], i + 1
            elif b < a and j < len(new):
                right, j = [*right, j], j + 1
            else:
                raise Refused(f"{show(old)} to {show(new)} mixes axes")
        out.append((left, right))
    out += [([k], []) for k in range(i, len(old))]
    out += [([], [k]) for k in range(j, len(new))]
    return out


def _elements(shape: Shape, axes: Sequence[int]) -> int:
    if any(shape[a].size is None for a in axes):
        raise Refused(f"splits or merges a symbolic axis of {show(shape)}: bind it first")
    return prod(shape[a].size or 0 for a in axes)


def _merge(sizes: Sequence[int], blocks: Sequence[int], what: str) -> int:
    """Block step of axes laid one inside the other, the last fastest, as one axis; WHOLE if all is one."""
    step, whole = 1, True
    for size, block in zip(reversed(sizes), reversed(blocks), strict=True):
        if whole:
            whole = block in (WHOLE, size)
            step *= size if whole else block
        elif block != 1 and size != 1:
            raise Refused(f"{what}: groups are not contiguous once the axes are merged")
    return WHOLE if whole else step


def _split(block: int, sizes: Sequence[int], what: str) -> list[int]:
    """Blocks of axes whose merged block step is `block`."""
    if block == WHOLE:
        return [WHOLE] * len(sizes)
    out: list[int] = []
    for size in reversed(sizes):
        if block % size == 0:
            out.insert(0, WHOLE)
            block //= size
        elif size % block == 0:
            out.insert(0, block)
            block = 1
        else:
            raise Refused(f"{what}: blocks of {block} straddle axes of {size}")
    return out
