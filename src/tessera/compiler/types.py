"""Element types of results. Integers carry their range: no rule may turn an exact sum into an overflow
unseen.
"""

from itertools import product
from typing import Final

from tessera.compiler.errors import DTypeError
from tessera.spec import F32, DType, Float, Grid

ACCUMULATOR: Final = Grid(32, signed=True)
"""What integer products are summed in."""


def interval(low: int, high: int) -> Grid:
    """Smallest grid that holds low..high, at most 32 bits."""
    if low >= 0:
        return Grid(min(32, max(1, high.bit_length())))
    return Grid(min(32, 1 + max((-low - 1).bit_length(), high.bit_length())), signed=True)


def floats(op: str, left: Float, right: Float) -> Float:
    """Common type of two floats; raises DTypeError for two different 16-bit types, which lose either way."""
    if left == right and left.bits >= 16:
        return left
    if left.bits == right.bits == 16:
        raise DTypeError(f"{op} of {left} and {right}: cast one of them first")
    return F32


def added(left: DType, right: DType) -> DType:
    if isinstance(left, Grid) and isinstance(right, Grid):
        return interval(left.low + right.low, left.high + right.high)
    return _mixed("add", left, right)


def multiplied(left: DType, right: DType) -> DType:
    if isinstance(left, Grid) and isinstance(right, Grid):
        ends = [a * b for a, b in product((left.low, left.high), (right.low, right.high))]
        return interval(min(ends), max(ends))
    return _mixed("mul", left, right)


def negated(dtype: DType) -> DType:
    return interval(-dtype.high, -dtype.low) if isinstance(dtype, Grid) else dtype


def contracted(left: DType, right: DType) -> DType:
    """Of a matrix product: int32 for integers, fp32 as soon as one side is a float."""
    if isinstance(left, Grid) and isinstance(right, Grid):
        return ACCUMULATOR
    if isinstance(left, Float) and isinstance(right, Float):
        floats("matmul", left, right)
    return F32


def joined(left: DType, right: DType) -> DType:
    """Of a concatenation."""
    if isinstance(left, Grid) and isinstance(right, Grid):
        return left if left == right else interval(min(left.low, right.low), max(left.high, right.high))
    return _mixed("concat", left, right) if left != right else left


def mapped(op: str, codes: DType, params: tuple[DType, ...]) -> DType:
    """Of a step's result, where a rule makes the step: integers stay exact, floats are computed in fp32."""
    if op == "scale":
        out = multiplied(codes, params[0])
    elif op == "shift":
        out = added(codes, params[0])
    else:
        assert op == "affine_min"
        out = added(multiplied(codes, params[0]), params[1])
    return out if isinstance(out, Grid) else F32


def _mixed(op: str, left: DType, right: DType) -> DType:
    if isinstance(left, Float) and isinstance(right, Float):
        return floats(op, left, right)
    only = left if isinstance(left, Float) else right
    assert isinstance(only, Float)
    return only if only.bits >= 16 else F32
