"""Elementwise multiplication of Qtiles by plain operands and by Qtiles (QFactory section 4.2), and negation.

Division by a plain operand is multiplication by its reciprocal.
"""

from collections.abc import Callable
from typing import Final

from tessera.compiler.node import Node
from tessera.compiler.ops import add, mul, neg
from tessera.compiler.rules.add import with_s, with_sz, with_z
from tessera.compiler.rules.forms import Form, Shared


def plain_s(a: Form, b: Form) -> Node:
    """A · B_s: (A B)_s. The plain operand takes the Qtile's pattern."""
    return with_s(mul(a.codes, b.codes), b.s)


def plain_z(a: Form, b: Form) -> Node:
    """A · B_z: A B + A_z, where z scales A."""
    return add(mul(a.codes, b.codes), with_s(a.codes, b.z))


def plain_sz(a: Form, b: Form) -> Node:
    """A · B_sz: (A B)_s + A_z, where z scales A."""
    return add(with_s(mul(a.codes, b.codes), b.s), with_s(a.codes, b.z))


def s_s(a: Form, b: Form) -> Node:
    """A_s1 · B_s2: (A B)_s1 s2."""
    return with_s(with_s(mul(a.codes, b.codes), b.s), a.s)


MUL_TABLE: Final[dict[tuple[str, str], Callable[[Form, Form], Node]]] = {
    ("plain", "s"): plain_s,
    ("plain", "z"): plain_z,
    ("plain", "sz"): plain_sz,
    ("s", "s"): s_s,
}
"""What is missing here, a bias meeting a scale or a bias, puts several products in place of one: refused."""


def negated(a: Form) -> Node:
    """-(A_sz): A_-s,-z; the codes stay as they are. A Qtile without a scale keeps none: -(A_z) is (-A)_-z."""
    minus_z = a.z and Shared(neg(a.z.value), a.z.pattern)
    if not a.s:
        return with_z(neg(a.codes), minus_z)
    minus_s = Shared(neg(a.s.value), a.s.pattern)
    return with_sz(a.codes, minus_s, minus_z) if minus_z else with_s(a.codes, minus_s)
