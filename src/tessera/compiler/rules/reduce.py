"""Sums of Qtiles along an axis, and the sum over groups that is a matrix product again."""

from tessera.compiler.node import Node
from tessera.compiler.ops import count, matmul, mul, param_shape, reduce_sum, repeat, reshape, swap
from tessera.compiler.rules.add import with_s, with_z
from tessera.compiler.rules.forms import Form, Shared
from tessera.compiler.rules.patterns import common
from tessera.compiler.rules.refused import Refused
from tessera.spec import WHOLE, Pattern


def reduced(node: Node, form: Form) -> Node:
    """Σ (s X + z) = s Σ X + n z along an axis of n elements on which s and z are constant.

    Raises Refused where one changes along the axis: it belongs to the summands.
    """
    axis, keep = node.attrs
    n = form.codes.shape[axis]
    for param in (form.s, form.z):
        if param and param.pattern.block[axis] not in (WHOLE, n.size):
            raise Refused(f"pattern {param.pattern} changes along the summed axis {n}")
    out = reduce_sum(form.codes, axis, keep=keep)
    if form.s:
        out = with_s(out, _dropped(form.s, axis, keep))
    if form.z:
        z = _dropped(form.z, axis, keep)
        times = repeat(count(n, z.value.rank), z.value.shape)
        out = with_z(out, Shared(mul(z.value, times), z.pattern))
    return out


def _dropped(param: Shared, axis: int, keep: bool) -> Shared:
    """The parameter without the summed axis, of which it has one entry."""
    block, shape = list(param.pattern.block), list(param.value.shape)
    if keep:
        block[axis] = WHOLE
        return Shared(param.value, Pattern(tuple(block)))
    del block[axis], shape[axis]
    return Shared(reshape(param.value, shape), Pattern(tuple(block)))


def outer_products(node: Node) -> Node | None:
    """Σ_g (A·J)_z over groups, each A·J one column, z one row: the product of group sums [m, g] and z [g, n].

    So a zero point for each group costs a matrix product with k / group as its reduction, and no pass over
    the accumulators at every group's end. (Not in the seed; it is how a kernel can do it.) None elsewhere.
    """
    [x], (axis, keep) = node.args, node.attrs
    if not x.is_qtile or x.step.op != "scale" or x.codes.op != "repeat" or keep or axis != x.rank - 3:
        return None
    column = x.codes.args[0]
    pattern = x.step.pattern
    broadcast = column.shape[:-1] != x.shape[:-1] or column.shape[-1].size != 1
    if broadcast or pattern.block[-2] != WHOLE or pattern.block[axis] == WHOLE:
        return None
    fine = common(pattern, Pattern(tuple(WHOLE if a == x.rank - 2 else 1 for a in range(x.rank))))
    rows = repeat(x.params[0], param_shape(x.shape, fine))
    z = reshape(rows, (*rows.shape[:-2], rows.shape[-1]))
    return matmul(swap(reshape(column, column.shape[:-1])), z)
