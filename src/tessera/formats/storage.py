"""How a QTensor lies in safetensors files: logical order, no kernel's layout.

<name>                plain tensors
<name>.codes          codes; below 8 bits densely packed along the last axis (`numerics.packing`)
<name>.<parameter>    each parameter in turn, by the same rules
"""

from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor

from tessera.formats.safetensors_file import Entry
from tessera.numerics.packing import pack, packed_length, unpack
from tessera.numerics.qtensor import QTensor, code_dtype
from tessera.spec import Chain, DType, Grid, Qtile


def stored_entries(name: str, tile: Qtile) -> dict[str, Entry]:
    """{stored name: type and shape} of every array that holds a tensor of `tile`."""
    if tile.chain.is_plain:
        return {name: _entry(tile)}
    entries = {f"{name}.codes": _entry(Qtile(tile.shape, Chain(tile.chain.codes)))}
    for param, param_tile in tile.param_tiles().items():
        entries |= stored_entries(f"{name}.{param}", param_tile)
    return entries


def to_stored(name: str, data: QTensor) -> dict[str, Tensor]:
    """{stored name: array} of a tensor."""
    codes = _packed(data.codes, data.chain.codes)
    if data.chain.is_plain:
        return {name: codes}
    arrays = {f"{name}.codes": codes}
    for param, values in data.params.items():
        arrays |= to_stored(f"{name}.{param}", values)
    return arrays


def from_stored(name: str, tile: Qtile, read: Callable[[str], Tensor]) -> QTensor:
    """Inverse of `to_stored`; `read` gives an array by its stored name."""
    grid = tile.chain.codes
    raw = read(name if tile.chain.is_plain else f"{name}.codes")
    codes = unpack(raw, grid.bits, tile.shape[-1], grid.signed) if _is_packed(grid) else raw
    params = {p: from_stored(f"{name}.{p}", t, read) for p, t in tile.param_tiles().items()}
    return QTensor(tile, codes, params)


def _entry(tile: Qtile) -> Entry:
    grid = tile.chain.codes
    if not _is_packed(grid):
        return Entry(code_dtype(grid), tile.shape)
    return Entry(torch.uint8, (*tile.shape[:-1], packed_length(tile.shape[-1], grid.bits)))


def _packed(codes: Tensor, grid: DType) -> Tensor:
    return pack(codes, grid.bits) if _is_packed(grid) else codes


def _is_packed(grid: DType) -> TypeGuard[Grid]:
    return isinstance(grid, Grid) and grid.bits < 8
