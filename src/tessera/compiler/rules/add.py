"""Table 1 of QFactory (section 4.3, seed 002): elementwise addition of plain operands and Qtiles.

A row's function takes the two operands as forms of the kinds its name says, in that order, and returns every
sum that equals theirs; none (the table's ×) where scales differ and no bias can move. The table is symmetric.
"""

from collections.abc import Callable
from typing import Final

from tessera.compiler.node import Node
from tessera.compiler.ops import add, affine, scaled, shifted
from tessera.compiler.rules.forms import Form, Shared
from tessera.compiler.rules.patterns import together


def plain_s(a: Form, b: Form) -> list[Node]:
    """Table 1, A + B_s: ×."""
    return []


def plain_z(a: Form, b: Form) -> list[Node]:
    """Table 1, A + B_z: (A + B)_z, or A_z + B, the bias moved to the other operand."""
    return [with_z(add(a.codes, b.codes), b.z), add(with_z(a.codes, b.z), b.codes)]


def plain_sz(a: Form, b: Form) -> list[Node]:
    """Table 1, A + B_sz: A_z + B_s."""
    return [add(with_z(a.codes, b.z), with_s(b.codes, b.s))]


def s_s(a: Form, b: Form) -> list[Node]:
    """Table 1, A_s1 + B_s2: × unless s1 = s2, then (A + B)_s."""
    return [with_s(add(a.codes, b.codes), same(a, b))] if same(a, b) else []


def s_z(a: Form, b: Form) -> list[Node]:
    """Table 1, A_s + B_z: A_sz + B."""
    return [add(with_sz(a.codes, a.s, b.z), b.codes)]


def s_sz(a: Form, b: Form) -> list[Node]:
    """Table 1, A_s1 + B_s2z: A_s1z + B_s2; with s1 = s2 also (A + B)_sz."""
    moved = add(with_sz(a.codes, a.s, b.z), with_s(b.codes, b.s))
    return [*([with_sz(add(a.codes, b.codes), same(a, b), b.z)] if same(a, b) else []), moved]


def z_z(a: Form, b: Form) -> list[Node]:
    """Table 1, A_z1 + B_z2: (A + B)_z1+z2."""
    return [with_z(add(a.codes, b.codes), both(a, b))]


def z_sz(a: Form, b: Form) -> list[Node]:
    """Table 1, A_z1 + B_s2z2: A + B_s2,z1+z2."""
    return [add(a.codes, with_sz(b.codes, b.s, both(a, b)))]


def sz_sz(a: Form, b: Form) -> list[Node]:
    """Table 1, A_s1z1 + B_s2z2: A_s1,z1+z2 + B_s2; with s1 = s2 also (A + B)_s,z1+z2."""
    moved = add(with_sz(a.codes, a.s, both(a, b)), with_s(b.codes, b.s))
    return [*([with_sz(add(a.codes, b.codes), same(a, b), both(a, b))] if same(a, b) else []), moved]


TABLE_1: Final[dict[tuple[str, str], Callable[[Form, Form], list[Node]]]] = {
    ("plain", "s"): plain_s,
    ("plain", "z"): plain_z,
    ("plain", "sz"): plain_sz,
    ("s", "s"): s_s,
    ("s", "z"): s_z,
    ("s", "sz"): s_sz,
    ("z", "z"): z_z,
    ("z", "sz"): z_sz,
    ("sz", "sz"): sz_sz,
}


def same(a: Form, b: Form) -> Shared | None:
    """The scale of both operands at their common pattern, or None where the scales differ."""
    assert a.s and b.s
    left, right = together(a.s, b.s, a.codes.shape)
    return left if left == right else None


def both(a: Form, b: Form) -> Shared:
    """z1 + z2 at the common pattern."""
    assert a.z and b.z
    left, right = together(a.z, b.z, a.codes.shape)
    return Shared(add(left.value, right.value), left.pattern)


def with_s(x: Node, s: Shared | None) -> Node:
    assert s
    return scaled(x, s.value, s.pattern)


def with_z(x: Node, z: Shared | None) -> Node:
    assert z
    return shifted(x, z.value, z.pattern)


def with_sz(x: Node, s: Shared | None, z: Shared | None) -> Node:
    """X_sz at the common pattern of both parameters."""
    assert s and z
    left, right = together(s, z, x.shape)
    return affine(x, left.value, right.value, left.pattern)


__all__ = ["TABLE_1"]
