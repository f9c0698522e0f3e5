"""Named axes, symbolic or of known size.

An axis derived from others (the groups of k, say) remembers how, so that a graph traced for one size can be
bound to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.compiler.errors import ShapeError


@dataclass(frozen=True, slots=True)
class Dim:
    """One axis. `size` is None while symbolic. `of` is (operator, left, right) for a derived one."""

    name: str
    size: int | None = None
    of: "tuple[str, Dim, Dim] | None" = None

    def __post_init__(self) -> None:
        if self.size is not None and (type(self.size) is not int or self.size < 0):
            raise ShapeError(f"axis {self.name!r} has size {self.size!r}: sizes are whole numbers from 0 on")
        if self.of is None and not self.name.isidentifier() and self.name != str(self.size):
            raise ShapeError(f"axis {self.name!r}: write a name such as 'm', or a size as a number")

    def __truediv__(self, parts: int) -> "Dim":
        """Axis of blocks of `parts` elements. Raises ShapeError where they do not divide."""
        if parts == 1:
            return self
        if self.size is not None and self.size % parts:
            raise ShapeError(
                f"blocks of {parts} do not divide axis {self} ({self.size} = {self.size // parts} x {parts} "
                f"+ {self.size % parts})"
            )
        size = None if self.size is None else self.size // parts
        return (
            fixed(size)
            if self.is_fixed and size
            else Dim(f"{self.name}/{parts}", size, ("/", self, fixed(parts)))
        )

    def __mul__(self, other: "Dim") -> "Dim":
        if other == ONE or self == ONE:
            return self if other == ONE else other
        if self.of is not None and self.of[0] == "/" and self.of[2] == other:
            return self.of[1]
        size = None if self.size is None or other.size is None else self.size * other.size
        if self.is_fixed and other.is_fixed and size is not None:
            return fixed(size)
        return Dim(f"{self.name}*{other.name}", size, ("*", self, other))

    def __add__(self, other: "Dim") -> "Dim":
        size = None if self.size is None or other.size is None else self.size + other.size
        if self.is_fixed and other.is_fixed and size is not None:
            return fixed(size)
        return Dim(f"{self.name}+{other.name}", size, ("+", self, other))

    @property
    def is_fixed(self) -> bool:
        """A bare number, which binding leaves alone."""
        return self.name.isdigit()

    def bind(self, sizes: Mapping[str, int]) -> "Dim":
        """The axis with the sizes of named axes put in."""
        if self.of is not None:
            operator, left, right = self.of
            left, right = left.bind(sizes), right.bind(sizes)
            if operator == "/":
                assert right.size is not None
                return left / right.size
            return left * right if operator == "*" else left + right
        return Dim(self.name, sizes.get(self.name, self.size)) if not self.is_fixed else self

    def __str__(self) -> str:
        return self.name if self.is_fixed or self.size is None else f"{self.name}={self.size}"


Shape = tuple[Dim, ...]


def fixed(size: int) -> Dim:
    return Dim(str(size), size)


ONE = fixed(1)


def agree(left: Dim, right: Dim) -> bool:
    """Whether two axes are of one size: by the sizes where both are known, else by name."""
    if left.size is not None and right.size is not None:
        return left.size == right.size
    return left.name == right.name


def show(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Sizes of a bound shape. Raises ShapeError naming the axis that is still symbolic."""
    for dim in shape:
        if dim.size is None:
            raise ShapeError(f"axis {dim} is symbolic: bind it to a size first")
    return tuple(dim.size for dim in shape if dim.size is not None)


__all__ = ["ONE", "Dim", "Shape", "agree", "fixed", "show", "sizes"]
