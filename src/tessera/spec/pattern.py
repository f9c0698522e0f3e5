"""Group patterns: which elements of a tensor share parameters (QFactory section 3.2, seed 002)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

from tessera.spec.errors import AlgebraError, SpecError

WHOLE = 0
"""In `Pattern.block`: the block spans the whole axis."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Blocks of `block[a]` elements along axis a share parameters; WHOLE (0) spans the axis.

    With `ragged` the last block of an axis may be shorter; otherwise blocks must divide the axis.
    The four patterns of the seed are the constructors `tensor`, `channel`, `blocks` and `individual`.
    """

    block: tuple[int, ...]
    ragged: bool = False

    def __post_init__(self) -> None:
        if not self.block or any(b < 0 for b in self.block):
            raise SpecError(f"pattern {self.block}: one entry per axis, each >= 0")

    @classmethod
    def tensor(cls, rank: int = 2) -> Self:
        return cls((WHOLE,) * rank)

    @classmethod
    def channel(cls, rank: int = 2, axis: int = 0) -> Self:
        return cls(tuple(1 if a == axis else WHOLE for a in range(rank)))

    @classmethod
    def blocks(cls, *block: int, ragged: bool = False) -> Self:
        return cls(block, ragged)

    @classmethod
    def individual(cls, rank: int = 2) -> Self:
        return cls((1,) * rank)

    @property
    def rank(self) -> int:
        return len(self.block)

    def counts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of a parameter tensor for data of `shape`. Raises SpecError where blocks do not divide."""
        if len(shape) != self.rank:
            raise SpecError(
                f"pattern {self} has {self.rank} axes, the tensor {tuple(shape)} has {len(shape)}"
            )
        out = []
        for axis, (size, block) in enumerate(zip(shape, self.block, strict=True)):
            if block == WHOLE:
                out.append(1)
                continue
            if size % block and not self.ragged:
                raise SpecError(
                    f"blocks of {block} do not divide axis {axis} of size {size} "
                    f"({size % block} left over); a ragged pattern stores a shorter last block"
                )
            out.append(-(-size // block))
        return tuple(out)

    def count(self, shape: Sequence[int]) -> int:
        return prod(self.counts(shape))

    def index_range(self, axis: int, size: int, start: int, stop: int) -> tuple[int, int]:
        """Parameter indices along `axis` that cover data[start:stop] of an axis of `size` elements.

        Raises AlgebraError where the cut falls inside a block, unless the block spans the axis: its one
        parameter then simply serves the smaller tensor.
        """
        block = self.block[axis]
        if block == WHOLE:
            return 0, 1
        if start % block or (stop % block and stop != size):
            raise AlgebraError(
                f"[{start}:{stop}] on axis {axis} cuts a block of {block}: cut at multiples of {block}"
            )
        return start // block, -(-stop // block)

    def __str__(self) -> str:
        if all(b == WHOLE for b in self.block):
            return "t"
        if all(b == 1 for b in self.block):
            return "i"
        ones = [a for a, b in enumerate(self.block) if b == 1]
        if len(ones) == 1 and all(b in (WHOLE, 1) for b in self.block):
            return "c" if ones == [0] else f"c{ones[0]}"
        return f"b({','.join(map(str, self.block))}{',ragged' if self.ragged else ''})"

    def to_json(self) -> dict[str, object]:
        return {"block": list(self.block)} | ({"ragged": True} if self.ragged else {})

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {"block": list(block), **rest} if all(isinstance(b, int) for b in block):
                return cls(tuple(block), bool(rest.get("ragged", False)))
            case _:
                raise SpecError(f"not a pattern: {raw!r}")
