"""A Qtile: the shape and mapping of a quantized tensor, with its exact size and the algebra on it.

The data itself is `tessera.numerics.QTensor`; everything here needs only the standard library, so the
planner and the server can price and check a format without loading torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Self

from tessera.spec.chain import Chain, Step
from tessera.spec.errors import AlgebraError, SpecError
from tessera.spec.grid import Grid
from tessera.spec.pattern import WHOLE, Pattern


@dataclass(frozen=True, slots=True)
class Qtile:
    """Tensor of `shape` whose elements are stored by `chain`. Raises SpecError where they do not fit."""

    shape: tuple[int, ...]
    chain: Chain

    def __post_init__(self) -> None:
        if any(s < 0 for s in self.shape):
            raise SpecError(f"negative size in shape {self.shape}")
        for step in self.chain.steps:
            if step.params and step.op != "lookup":
                step.pattern.counts(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def param_tiles(self) -> dict[str, "Qtile"]:
        """Each parameter as a Qtile of its own: {name: shape and chain}."""
        return {
            p.name: Qtile(self._param_shape(step), p.chain) for step in self.chain.steps for p in step.params
        }

    def _param_shape(self, step: Step) -> tuple[int, ...]:
        if step.op != "lookup":
            return step.pattern.counts(self.shape)
        source = self._input_of(step)
        return (1 << source.bits,)

    def _input_of(self, step: Step) -> Grid:
        index = self.chain.steps.index(step)
        source = self.chain.codes if index == 0 else self.chain.steps[index - 1].out
        assert isinstance(source, Grid)
        return source

    @property
    def bits(self) -> int:
        """Exact size in bits: codes and every parameter of the chain, nested ones included."""
        return self.numel * self.chain.codes.bits + sum(t.bits for t in self.param_tiles().values())

    @property
    def bytes(self) -> int:
        """`bits` rounded up to whole bytes for each stored array, as a checkpoint holds them."""
        own = -(-self.numel * self.chain.codes.bits // 8)
        return own + sum(t.bytes for t in self.param_tiles().values())

    @property
    def bits_per_element(self) -> Fraction:
        return Fraction(self.bits, max(1, self.numel))

    def slice(self, axis: int, start: int, stop: int) -> Self:
        """Elements start..stop-1 along `axis`. Raises AlgebraError where a block would be cut."""
        self._check_axis(axis)
        size = self.shape[axis]
        if not 0 <= start <= stop <= size:
            raise AlgebraError(f"[{start}:{stop}] is outside axis {axis} of size {size}")
        for step in self.chain.steps:
            if step.params and step.op != "lookup":
                step.pattern.index_range(axis, size, start, stop)
        return replace(self, shape=_with(self.shape, axis, stop - start))

    def take_rows(self, count: int) -> Self:
        """`count` rows gathered along axis 0 (embedding look-up). Refuses blocks that span several rows."""
        for step in self.chain.steps:
            if step.params and step.op != "lookup" and step.pattern.block[0] not in (WHOLE, 1):
                raise AlgebraError(
                    f"rows share parameters in blocks of {step.pattern.block[0]} rows ({step})"
                )
        return replace(self, shape=_with(self.shape, 0, count))

    def _check_axis(self, axis: int) -> None:
        if not 0 <= axis < len(self.shape):
            raise AlgebraError(f"axis {axis} of a tensor of rank {len(self.shape)}")


def concat(tiles: Sequence[Qtile], axis: int = 0) -> Qtile:
    """Join tiles along `axis` (fused qkv, gate_up).

    A parameter whose block spans the joined axis is promoted to one entry per element along it (per-tensor
    becomes per-channel), since the parts bring different values. Raises AlgebraError for unequal chains,
    shapes that disagree elsewhere, or blocks that would straddle a seam.
    """
    if not tiles:
        raise AlgebraError("concat of nothing")
    first = tiles[0]
    first._check_axis(axis)
    for tile in tiles[1:]:
        if tile.chain != first.chain:
            raise AlgebraError(f"unequal chains stay separate: {first.chain} and {tile.chain}")
        if _with(tile.shape, axis, 0) != _with(first.shape, axis, 0):
            raise AlgebraError(f"shapes {first.shape} and {tile.shape} differ off axis {axis}")
    for tile in tiles[:-1]:
        for step in first.chain.steps:
            block = step.pattern.block[axis] if step.params and step.op != "lookup" else 1
            if block not in (WHOLE, 1) and tile.shape[axis] % block:
                raise AlgebraError(
                    f"a part of {tile.shape[axis]} on axis {axis} ends inside a block of {block}"
                )
    if len(tiles) > 1 and any(not p.chain.is_plain for p in first.chain.params()):
        raise AlgebraError("parameters of the parts are quantized themselves: decode before joining")
    if any(s.op == "lookup" for s in first.chain.steps):
        raise AlgebraError("lookup tables of the parts may differ: decode before joining")
    steps = tuple(promote(step, axis) if len(tiles) > 1 else step for step in first.chain.steps)
    shape = _with(first.shape, axis, sum(t.shape[axis] for t in tiles))
    return Qtile(shape, Chain(first.chain.codes, steps))


def promote(step: Step, axis: int) -> Step:
    """The step with a block that spans `axis` split into one entry per element along it."""
    if not step.params or step.pattern.block[axis] != WHOLE:
        return step
    block = _with(step.pattern.block, axis, 1)
    return replace(step, pattern=Pattern(block, step.pattern.ragged))


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])
