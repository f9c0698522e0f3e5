"""Table 2 of QFactory (section 4.3, seed 002): matrix products of plain operands and Qtiles.

    (s1 A + z1 J)(s2 B + z2 J) = (A B)_s1s2 + (J B)_z1s2 + (A J)_s1z2 + (J J)_z1z2

with J all ones. A row's function takes the operands as forms of the kinds its name says and returns that sum.
Where a parameter changes along k, the reduction is split at group boundaries, term by term: the product
becomes one for each group, scaled, and summed over groups.
"""

from collections.abc import Callable
from math import gcd
from typing import Final

from tessera.compiler.dims import fixed
from tessera.compiler.node import Node
from tessera.compiler.ops import add, count, matmul, reduce_sum, repeat, reshape, scaled, transpose
from tessera.compiler.rules.forms import Form, Shared
from tessera.compiler.rules.movement import through
from tessera.compiler.rules.refused import Refused
from tessera.spec import WHOLE, Pattern

Core = Callable[[Node, Node], Node]


# The four products ------------------------------------------------------------------------------------------


def ab(a: Node, b: Node) -> Node:
    """A · B."""
    return matmul(a, b)


def aj(a: Node, b: Node) -> Node:
    """A · J: the row sums of A, one column, broadcast."""
    return repeat(reduce_sum(a, -1, keep=True), (*a.shape[:-1], b.shape[-1]))


def jb(a: Node, b: Node) -> Node:
    """J · B: the column sums of B, one row, broadcast."""
    return repeat(reduce_sum(b, -2, keep=True), (*a.shape[:-1], b.shape[-1]))


def jj(a: Node, b: Node) -> Node:
    """J · J: k everywhere, one number."""
    return repeat(count(a.shape[-1], a.rank), (*a.shape[:-1], b.shape[-1]))


# Rows -------------------------------------------------------------------------------------------------------


def plain_s(a: Form, b: Form) -> Node:
    """Table 2, A · B_s: (A B)_s."""
    return term(ab, a, b, None, b.s)


def plain_z(a: Form, b: Form) -> Node:
    """Table 2, A · B_z: A B + (A J)_z."""
    return add(term(ab, a, b, None, None), term(aj, a, b, None, b.z))


def plain_sz(a: Form, b: Form) -> Node:
    """Table 2, A · B_sz: (A B)_s + (A J)_z."""
    return add(term(ab, a, b, None, b.s), term(aj, a, b, None, b.z))


def s_plain(a: Form, b: Form) -> Node:
    """Table 2, A_s · B: (A B)_s."""
    return term(ab, a, b, a.s, None)


def s_s(a: Form, b: Form) -> Node:
    """Table 2, A_s1 · B_s2: (A B)_s1s2."""
    return term(ab, a, b, a.s, b.s)


def s_z(a: Form, b: Form) -> Node:
    """Table 2, A_s · B_z: (A B)_s + (A J)_sz."""
    return add(term(ab, a, b, a.s, None), term(aj, a, b, a.s, b.z))


def s_sz(a: Form, b: Form) -> Node:
    """Table 2, A_s1 · B_s2z: (A B)_s1s2 + (A J)_s1z."""
    return add(term(ab, a, b, a.s, b.s), term(aj, a, b, a.s, b.z))


def z_plain(a: Form, b: Form) -> Node:
    """Table 2, A_z · B: A B + (J B)_z."""
    return add(term(ab, a, b, None, None), term(jb, a, b, a.z, None))


def z_s(a: Form, b: Form) -> Node:
    """Table 2, A_z · B_s: (A B)_s + (J B)_zs."""
    return add(term(ab, a, b, None, b.s), term(jb, a, b, a.z, b.s))


def z_z(a: Form, b: Form) -> Node:
    """Table 2, A_z1 · B_z2: A B + (J B)_z1 + (A J)_z2 + k z1 z2."""
    return add(
        term(ab, a, b, None, None),
        term(jb, a, b, a.z, None),
        term(aj, a, b, None, b.z),
        term(jj, a, b, a.z, b.z),
    )


def z_sz(a: Form, b: Form) -> Node:
    """Table 2, A_z1 · B_sz2: (A B)_s + (J B)_z1s + (A J)_z2 + k z1 z2."""
    return add(
        term(ab, a, b, None, b.s),
        term(jb, a, b, a.z, b.s),
        term(aj, a, b, None, b.z),
        term(jj, a, b, a.z, b.z),
    )


def sz_plain(a: Form, b: Form) -> Node:
    """Table 2, A_sz · B: (A B)_s + (J B)_z."""
    return add(term(ab, a, b, a.s, None), term(jb, a, b, a.z, None))


def sz_s(a: Form, b: Form) -> Node:
    """Table 2, A_s1z · B_s2: (A B)_s1s2 + (J B)_zs2."""
    return add(term(ab, a, b, a.s, b.s), term(jb, a, b, a.z, b.s))


def sz_z(a: Form, b: Form) -> Node:
    """Table 2, A_sz1 · B_z2: (A B)_s + (J B)_z1 + (A J)_sz2 + k z1 z2."""
    return add(
        term(ab, a, b, a.s, None),
        term(jb, a, b, a.z, None),
        term(aj, a, b, a.s, b.z),
        term(jj, a, b, a.z, b.z),
    )


def sz_sz(a: Form, b: Form) -> Node:
    """Table 2, A_s1z1 · B_s2z2: (A B)_s1s2 + (J B)_z1s2 + (A J)_s1z2 + k z1 z2."""
    return add(
        term(ab, a, b, a.s, b.s), term(jb, a, b, a.z, b.s), term(aj, a, b, a.s, b.z), term(jj, a, b, a.z, b.z)
    )


TABLE_2: Final[dict[tuple[str, str], Callable[[Form, Form], Node]]] = {
    ("plain", "s"): plain_s,
    ("plain", "z"): plain_z,
    ("plain", "sz"): plain_sz,
    ("s", "plain"): s_plain,
    ("s", "s"): s_s,
    ("s", "z"): s_z,
    ("s", "sz"): s_sz,
    ("z", "plain"): z_plain,
    ("z", "s"): z_s,
    ("z", "z"): z_z,
    ("z", "sz"): z_sz,
    ("sz", "plain"): sz_plain,
    ("sz", "s"): sz_s,
    ("sz", "z"): sz_z,
    ("sz", "sz"): sz_sz,
}


# A term and its groups --------------------------------------------------------------------------------------


def term(core: Core, a: Form, b: Form, left: Shared | None, right: Shared | None) -> Node:
    """`core` of the codes, scaled by a parameter of A and one of B.

    A parameter that is constant along k scales the product as it stands: its entries already lie along the
    product's own axis. Otherwise the product is taken group by group. Raises Refused where there are no
    groups.
    """
    group = shared_group(a.codes, left, right)
    if group is None:
        return _scaled(core(a.codes, b.codes), left, right)
    a_codes, left = split(a.codes, left, group, -1)
    b_codes, right = split(b.codes, right, group, -2)
    return reduce_sum(_scaled(core(a_codes, b_codes), left, right), a.codes.rank - 2)


def shared_group(a: Node, left: Shared | None, right: Shared | None) -> int | None:
    """Elements along k that share every parameter, or None where all do."""
    k = a.shape[-1]
    steps = [p.pattern.block[axis] for p, axis in ((left, -1), (right, -2)) if p]
    if any(p.pattern.ragged for p in (left, right) if p):
        raise Refused(f"groups along {k} are ragged: the reduction does not split evenly")
    group = gcd(*(step for step in steps if step not in (WHOLE, k.size)), 0)
    if group == 0:
        return None
    if group == 1:
        raise Refused(f"a parameter changes with every element of {k}: no sum shares it")
    if k.size is None:
        raise Refused(f"axis {k} is symbolic: bind it to split it into groups of {group}")
    return group


def split(x: Node, param: Shared | None, group: int, axis: int) -> tuple[Node, Shared | None]:
    """Codes and parameter with k (`axis`, one of the last two) split, the axis of groups before both."""
    k = axis % x.rank
    shape = (*x.shape[:k], x.shape[k] / group, fixed(group), *x.shape[k + 1 :])
    order = [*range(x.rank - 2), k, *(i for i in range(x.rank - 2, x.rank + 1) if i != k)]
    if not param:
        return transpose(reshape(x, shape), order), None
    qtile = through(transpose(through(reshape(scaled(x, param.value, param.pattern), shape)), order))
    return qtile.codes, Shared(qtile.params[0], qtile.step.pattern)


def _scaled(x: Node, left: Shared | None, right: Shared | None) -> Node:
    """The product with the parameter of A (one entry along k) on rows and that of B on columns."""
    for param, axis in ((right, -2), (left, -1)):
        if param:
            block = list(param.pattern.block)
            block[axis] = WHOLE
            x = scaled(x, param.value, Pattern(tuple(block)))
    return x


__all__ = ["TABLE_2", "shared_group", "split", "term"]
