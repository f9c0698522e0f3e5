"""A quantized tensor: a Qtile and its data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, Self

import torch
from torch import Tensor

from tessera.numerics.blocks import reduce_blocks, spread
from tessera.numerics.errors import QTensorError
from tessera.spec import WHOLE, Chain, Float, Grid, Qtile, Step
from tessera.spec import concat as concat_tiles

FLOAT_DTYPES: Final = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
FLOATS: Final = {dtype: Float(name) for name, dtype in FLOAT_DTYPES.items()}


_OPS: Final[dict[str, Callable[..., Tensor]]] = {
    "cast": lambda q: q,
    "scale": lambda q, s: q * s,
    "shift": lambda q, z: q + z,
    "affine_zero": lambda q, s, z: (q - z) * s,
    "affine_min": lambda q, s, m: q * s + m,
    "lookup": lambda q, table: table[q],
}


@dataclass(frozen=True, slots=True, eq=False)
class QTensor:
    """Codes and parameters of a `Qtile`.

    `codes` (shape of the tile, one element per code, not packed) are of `code_dtype(chain.codes)`: an integer
    type that holds the grid, or floats where the chain is plain. `params` holds each parameter of the chain
    by name, itself a QTensor of the shape `tile.param_tiles()` says.

    Raises QTensorError where the data does not fit, codes outside the grid and integer steps that overflow
    their type included, so no kernel ever meets one. Compared by identity.
    """

    tile: Qtile
    codes: Tensor
    params: Mapping[str, "QTensor"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chain, wanted = self.tile.chain, self.tile.param_tiles()
        if tuple(self.codes.shape) != self.tile.shape:
            raise QTensorError(f"codes have shape {tuple(self.codes.shape)}, the tile {self.tile.shape}")
        if self.codes.dtype != code_dtype(chain.codes):
            raise QTensorError(f"codes are {self.codes.dtype}: {chain.codes} is {code_dtype(chain.codes)}")
        if self.params.keys() != wanted.keys():
            raise QTensorError(f"parameters {sorted(self.params)}: {chain} has {sorted(wanted)}")
        for name, tile in wanted.items():
            if self.params[name].tile != tile:
                raise QTensorError(f"parameter {name} is {self.params[name].tile}, wanted {tile}")
        _check_range(self.codes, chain.codes, "codes")
        self._check_integer_steps()

    def _check_integer_steps(self) -> None:
        steps = list(takewhile(lambda step: isinstance(step.out, Grid), self.tile.chain.steps))
        if len(steps) == 1 and steps[0].op != "lookup" and self.codes.numel():
            self._check_extremes(steps[0])
            return
        value = self.codes
        for step in steps:
            value = self._apply(step, value, torch.int32)
            _check_range(value, step.out, str(step))

    def _check_extremes(self, step: Step) -> None:
        """The check of a chain's only integer step. It is monotonic in the code, so the least and the
        greatest code of each block show any overflow, at a fraction of the work.
        """
        p = [self.params[p.name].dequantize(torch.int32) for p in step.params]
        for reduction in (torch.amin, torch.amax):
            codes = reduce_blocks(self.codes, step.pattern, reduction)
            _check_range(_OPS[step.op](codes.int(), *p), step.out, str(step), "block")

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values. Integer steps are exact; float steps are computed in fp32 (fp64 if that is `dtype`)
        and rounded once, at the end: a step's `out` float type does not round in between.
        """
        value = self.codes
        for step in self.tile.chain.steps:
            value = self._apply(step, value, torch.float64 if dtype == torch.float64 else torch.float32)
        return value.to(dtype)

    def _apply(self, step: Step, value: Tensor, dtype: torch.dtype) -> Tensor:
        """`value` after one step, in `dtype`; in int32 where the step puts out integers."""
        dtype = torch.int32 if isinstance(step.out, Grid) else dtype
        value = value.long() if step.op == "lookup" else value.to(dtype)
        p = [self.params[p.name].dequantize(dtype) for p in step.params]
        if step.op != "lookup":
            p = [spread(x, step.pattern, self.tile.shape) for x in p]
        return _OPS[step.op](value, *p)

    def slice(self, axis: int, start: int, stop: int) -> Self:
        """Elements start..stop-1 along `axis`, as views. Raises AlgebraError where a block would be cut."""
        tile = self.tile.slice(axis, start, stop)
        params = dict(self.params)
        for step, name in _shared_params(self.tile.chain):
            span = step.pattern.index_range(axis, self.tile.shape[axis], start, stop)
            params[name] = params[name].slice(axis, *span)
        return type(self)(tile, self.codes.narrow(axis, start, stop - start), params)

    def take_rows(self, rows: Tensor) -> Self:
        """Rows gathered along axis 0 (embedding look-up); `rows` is int64 [R].

        Raises AlgebraError where parameters are shared by blocks of several rows.
        """
        tile = self.tile.take_rows(rows.numel())
        params = dict(self.params)
        for step, name in _shared_params(self.tile.chain):
            if step.pattern.block[0] == 1:
                params[name] = params[name].take_rows(rows)
        return type(self)(tile, self.codes.index_select(0, rows), params)

    def to(self, device: torch.device | str) -> Self:
        """The same tensor on another device."""
        params = {name: param.to(device) for name, param in self.params.items()}
        return type(self)(self.tile, self.codes.to(device), params)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tile.shape

    @property
    def chain(self) -> Chain:
        return self.tile.chain

    @property
    def nbytes(self) -> int:
        """Bytes in a checkpoint, codes densely packed (not of the unpacked tensors held here)."""
        return self.tile.bytes


def plain(tensor: Tensor, chain: Chain | None = None) -> QTensor:
    """A tensor without steps. `chain` is needed for integers, whose grid the torch type does not tell."""
    if chain is None:
        if tensor.dtype not in FLOATS:
            raise QTensorError(f"{tensor.dtype} is not a storage type: {', '.join(FLOAT_DTYPES)}")
        chain = Chain(FLOATS[tensor.dtype])
    return QTensor(Qtile(tuple(tensor.shape), chain), tensor)


def concat(parts: Sequence[QTensor], axis: int = 0) -> QTensor:
    """Join along `axis`, as `spec.concat` does for tiles: a parameter whose block spans the axis gets one
    entry per element along it. Raises AlgebraError with the reason where the parts do not join.
    """
    tile = concat_tiles([p.tile for p in parts], axis)
    if len(parts) == 1:
        return parts[0]
    params: dict[str, QTensor] = {}
    for step, name in _shared_params(parts[0].chain):
        pieces = [p.params[name] for p in parts]
        if step.pattern.block[axis] == WHOLE:
            pieces = [_repeat(q, axis, p.shape[axis]) for p, q in zip(parts, pieces, strict=True)]
        params[name] = concat(pieces, axis)
    return QTensor(tile, torch.cat([p.codes for p in parts], axis), params)


def _repeat(param: QTensor, axis: int, count: int) -> QTensor:
    """A parameter with one entry along `axis`, repeated."""
    return plain(param.codes.repeat_interleave(count, dim=axis), param.chain)


def _shared_params(chain: Chain) -> Iterator[tuple[Step, str]]:
    """Parameters laid out over the data's axes; a lookup table is not."""
    for step in chain.steps:
        if step.op != "lookup":
            for param in step.params:
                yield step, param.name


def _check_range(values: Tensor, grid: Grid | Float, what: str, unit: str = "element") -> None:
    if isinstance(grid, Float) or values.numel() == 0:
        return
    limits = torch.iinfo(values.dtype)
    if grid.low <= limits.min and limits.max <= grid.high:
        return
    low, high = (int(v) for v in torch.aminmax(values))
    if low < grid.low or high > grid.high:
        first = ((values < grid.low) | (values > grid.high)).nonzero()[0].tolist()
        raise QTensorError(
            f"{what} span [{low}, {high}], outside {grid} = [{grid.low}, {grid.high}], first in {unit} "
            f"{first}"
        )


def code_dtype(grid: Grid | Float) -> torch.dtype:
    """Narrowest torch type that holds the grid's codes; the float type itself for a Float.

    Raises QTensorError for small floats, which are described and compiled for but not held as data here.
    """
    if isinstance(grid, Float):
        if grid.name not in FLOAT_DTYPES:
            raise QTensorError(f"{grid} data is not held in torch: {', '.join(FLOAT_DTYPES)} are")
        return FLOAT_DTYPES[grid.name]
    if grid.bits <= 8:
        return torch.int8 if grid.signed else torch.uint8
    if grid.bits <= 15 + grid.signed:
        return torch.int16
    return torch.int32 if grid.bits <= 31 + grid.signed else torch.int64


__all__ = ["FLOATS", "FLOAT_DTYPES", "QTensor", "code_dtype", "concat", "plain"]
