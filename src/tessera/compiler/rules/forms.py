"""How a Qtile reads as X_sz = s * X + z (QFactory section 4.3), the form in which the tables are written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tessera.compiler.node import Node
from tessera.compiler.ops import mul, neg, scaled, shifted
from tessera.spec import Pattern


class Shared(NamedTuple):
    """A parameter and the pattern that says which elements share each of its entries."""

    value: Node
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Form:
    """s * codes + z; a missing s is 1, a missing z is 0. Without both it is a plain operand."""

    codes: Node
    s: Shared | None = None
    z: Shared | None = None

    @property
    def kind(self) -> str:
        """plain, s, z or sz: the row or column of a table."""
        return ("s" if self.s else "") + ("z" if self.z else "") or "plain"


def plain(x: Node) -> Form:
    """The operand as it is: a Qtile that is dequantized here, or a tensor."""
    return Form(x)


def readings(x: Node) -> Iterator[Form]:
    """Forms that take the outermost step of a Qtile apart, the whole of it first, then its parts.

    A lookup is not linear and has none: nothing of it can leave the operand.
    """
    if not x.is_qtile:
        return
    q, pattern = x.codes, x.step.pattern
    match x.step.op, x.params:
        case "scale", (s,):
            yield Form(q, s=Shared(s, pattern))
        case "shift", (z,):
            yield Form(q, z=Shared(z, pattern))
        case "affine_min", (s, z):
            yield Form(q, Shared(s, pattern), Shared(z, pattern))
            yield Form(scaled(q, s, pattern), z=Shared(z, pattern))
        case "affine_zero", (s, z):
            bias = Shared(neg(mul(s, z)), pattern)
            yield Form(q, Shared(s, pattern), bias)
            yield Form(shifted(q, neg(z), pattern), s=Shared(s, pattern))
            yield Form(scaled(q, s, pattern), z=bias)


def whole(x: Node) -> Iterator[Form]:
    """The operand as it is, then the reading that takes all of its outermost step."""
    yield plain(x)
    yield from list(readings(x))[:1]


def scales(x: Node) -> Iterator[Form]:
    """Forms that take one of the nested scales of a Qtile, whichever; the others stay on the codes."""
    outer: list[Node] = []
    node = x
    while node.is_qtile and node.step.op == "scale":
        rest = node.codes
        for step in reversed(outer):
            rest = scaled(rest, step.params[0], step.step.pattern)
        yield Form(rest, s=Shared(node.params[0], node.step.pattern))
        outer.append(node)
        node = node.codes
