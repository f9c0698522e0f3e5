"""int8 rows in tiles: the layout of `TiledRows`. Row-wise kernels write it, integer GEMMs read it."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.types import QuantizedRows, TiledRows

STEP: Final = 128
"""Columns of a tile: what a GEMM reads of K at a time."""
ATOM: Final = 8
"""Tokens of a tile."""
_CHUNK: Final = 16


def empty_tiled(tokens: int, columns: int, device: torch.device | str = "cuda") -> TiledRows:
    """Uninitialised rows; who fills them also zeroes the columns from `columns` on."""
    steps, atoms = -(-columns // STEP), -(-tokens // ATOM)
    return TiledRows(
        torch.empty((steps, atoms, ATOM, STEP), dtype=torch.int8, device=device),
        torch.empty(tokens, dtype=torch.float32, device=device),
        torch.empty(tokens, dtype=torch.int32, device=device),
        columns,
    )


def tile_rows(rows: QuantizedRows) -> TiledRows:
    """The same rows in tiles, missing tokens and columns zero."""
    tokens, columns = rows.shape
    padded = F.pad(rows.codes, (0, -columns % STEP, 0, -tokens % ATOM))
    tiles = padded.view(-1, ATOM, padded.shape[1] // STEP, STEP).permute(2, 0, 1, 3)
    return TiledRows(swizzle(tiles), rows.scale, rows.row_sum, columns)


def untile_rows(rows: TiledRows) -> QuantizedRows:
    """Inverse of `tile_rows`."""
    tokens, columns = rows.shape
    codes = swizzle(rows.codes).permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
    return QuantizedRows(codes[:tokens, :columns].contiguous(), rows.scale, rows.row_sum)


def swizzle(tiles: Tensor) -> Tensor:
    """8-bit [..., R, 128]: chunk c of row r to chunk c ^ (r mod 8). Its own inverse."""
    rows = torch.arange(tiles.shape[-2], device=tiles.device)[:, None]
    chunks = torch.arange(STEP // _CHUNK, device=tiles.device)[None] ^ (rows % ATOM)
    split = tiles.reshape(*tiles.shape[:-1], STEP // _CHUNK, _CHUNK)
    return split[..., rows, chunks, :].flatten(-2).contiguous()
