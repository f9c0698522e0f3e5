"""How int4 weights lie for products with 16-bit activations: tiles of 128 rows by 128 columns, one copy each.

A tile is two halves of 64 rows; a half is its codes [2][128 threads][16 bytes] and then, for each group of
its columns, [32 row pairs] of two fp16 scales and [32 row pairs] of two zero points in a byte.

Thread 32 w + 4 g + t of a warpgroup holds rows 16 w + g and 16 w + g + 8, as mma.sync and wgmma want operand
A. Its 16 bytes of part h are columns 64 h and on: words (k = 32 step, row) in the order (0, g), (0, g + 8),
(1, g), (1, g + 8). Nibble i of a word is column 16 (i % 2) + 8 (i / 2 % 2) + 2 t + i / 4 of its step, so
that each AND of a word, or of the word shifted by 8, is one register of operand A of a k = 16 step: bits 0-3
of its halves for the first of the two steps, bits 4-7 for the second.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.registry import Layout
from tessera.numerics.qtensor import QTensor, plain
from tessera.spec import Chain, Grid, Qtile, group_of

ROWS: Final = 128
"""Rows of a tile."""
COLUMNS: Final = 128
"""Columns of a tile: what a GEMM reads of K at a time."""
CODE_BYTES: Final = 4096
"""Codes of half a tile."""
PARAM_BYTES: Final = 160
"""Parameters of one group of half a tile."""
_SIGNED: Final = 8
"""Zero point of signed codes, which are stored as q + 8."""


@dataclass(frozen=True, slots=True, eq=False)
class HalfWeights:
    """`tiles` uint8 [ceil(N / 128), ceil(K / 128), 2, bytes]; w[n, k] = (code - zero) scale.

    Without groups `row` float32 [2, 128 ceil(N / 128)] holds each row's scale and zero point, else nothing.
    Rows from N on have scale 0; columns from K on hold their zero point.
    """

    tile: Qtile
    tiles: Tensor
    row: Tensor

    @property
    def group(self) -> int:
        """Columns of a group, or 0 where a row has one scale."""
        return group_of(self.tile.chain) or 0

    @property
    def nbytes(self) -> int:
        return self.tiles.nbytes + self.row.nbytes


def pack(weight: QTensor) -> HalfWeights:
    """4-bit codes, symmetric or with a zero point, in groups of 32, 64 or 128 columns or one a row."""
    codes, scale, zero = _affine(weight)
    group = group_of(weight.chain) or 0
    per_tile = COLUMNS // group if group else 0
    steps = -(-codes.shape[1] // COLUMNS)
    columns = _pad_rows(zero if per_tile else zero.expand(-1, steps))
    if per_tile:
        missing = steps * per_tile - columns.shape[1]
        columns = F.pad(columns, (0, missing))
        scales = F.pad(_pad_rows(scale), (0, missing))
    spread = columns.repeat_interleave(group or COLUMNS, 1)
    spread[: codes.shape[0], : codes.shape[1]] = codes
    tiles = _tile_nibbles(spread)
    if not per_tile:
        row = torch.stack((_pad_rows(scale)[:, 0].float(), _pad_rows(zero)[:, 0].float()))
        return HalfWeights(weight.tile, tiles, row)
    params = torch.cat(
        (_tile_params(scales, steps).view(torch.uint8), _pair(_tile_params(columns, steps))), -1
    )
    tiles = torch.cat((tiles, params.flatten(3)), -1)
    return HalfWeights(weight.tile, tiles, torch.empty((2, 0), device=tiles.device))


def unpack(packed: HalfWeights) -> QTensor:
    """Inverse of `pack`."""
    (n, k), group = packed.tile.shape, packed.group
    codes = _untile_nibbles(packed.tiles[..., :CODE_BYTES])[:n, :k]
    if group:
        params = packed.tiles[..., CODE_BYTES:].reshape(*packed.tiles.shape[:3], -1, PARAM_BYTES)
        bytes_ = params[..., :COLUMNS].contiguous().view(torch.float16)
        scale, zero = _untile_params(bytes_), _untile_params(_unpair(params[..., COLUMNS:]))
    else:
        scale, zero = packed.row[0, :, None].half(), packed.row[1, :, None].to(torch.uint8)
    tiles = packed.tile.param_tiles()
    values = {
        name: x[:n, : tiles[name].shape[1]].contiguous()
        for name, x in (("scale", scale), ("zero", zero))
        if name in tiles
    }
    codes = codes.to(torch.int8) - _SIGNED if "zero" not in tiles else codes.contiguous()
    return QTensor(packed.tile, codes, {name: plain(x, tiles[name].chain) for name, x in values.items()})


LAYOUT: Final = Layout("half4_tiles128", 1, "cuda", pack, unpack)


def packed_bytes(tile: Qtile) -> int:
    """`nbytes` of a tensor that `takes` accepts, without packing it."""
    n, k = (-(-size // step) for size, step in zip(tile.shape, (ROWS, COLUMNS), strict=True))
    group = group_of(tile.chain)
    if group is None:
        return 2 * n * k * CODE_BYTES + 2 * 4 * ROWS * n
    return 2 * n * k * (CODE_BYTES + COLUMNS // group * PARAM_BYTES)


def takes(chain: Chain) -> str:
    """Why weights of `chain` cannot be packed, or nothing."""
    if len(chain.steps) != 1 or not isinstance(chain.codes, Grid) or chain.codes.bits != 4:
        return f"takes 4-bit codes and one step, not {chain}"
    step = chain.steps[0]
    types = [str(p.chain) for p in step.params]
    form = (step.op, chain.codes.signed, types)
    if form not in (("scale", True, ["f16"]), ("affine_zero", False, ["f16", "u4"])):
        return f"takes signed codes with an fp16 scale, or unsigned ones with a zero point too, not {chain}"
    if step.pattern.rank != 2 or step.pattern.block[0] != 1 or step.pattern.block[1] not in (0, 32, 64, 128):
        return f"takes groups of 32, 64 or 128 columns or one scale a row, not {step.pattern}"
    return ""


def _affine(weight: QTensor) -> tuple[Tensor, Tensor, Tensor]:
    """(codes uint8 [N, K], scale fp16 [N, G], zero uint8 [N, G])."""
    scale = weight.params["scale"].codes
    if "zero" in weight.params:
        return weight.codes, scale, weight.params["zero"].codes
    codes = (weight.codes + _SIGNED).to(torch.uint8)
    return codes, scale, torch.full_like(scale, _SIGNED, dtype=torch.uint8)


def _pad_rows(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[0] % ROWS))


def _tile_nibbles(codes: Tensor) -> Tensor:
    """Codes uint8 [N, K], whole tiles -> [N / 128, K / 128, 2, 4096]."""
    n, k = codes.shape
    # tile, half, w, second, g | tile, h, step, high, eight, t, odd
    split = codes.view(n // ROWS, 2, 4, 2, 8, k // COLUMNS, 2, 2, 2, 2, 4, 2)
    # -> tiles, half, h, w, g, t, step, second, odd, eight, high
    split = split.permute(0, 5, 1, 6, 2, 4, 10, 7, 3, 11, 9, 8)
    return (split[..., 0] | split[..., 1] << 4).flatten(3)


def _untile_nibbles(tiles: Tensor) -> Tensor:
    n, k = tiles.shape[:2]
    codes = torch.stack((tiles & 15, tiles >> 4), -1).view(n, k, 2, 2, 4, 8, 4, 2, 2, 2, 2, 2)
    return codes.permute(0, 2, 4, 8, 5, 1, 3, 7, 11, 10, 6, 9).reshape(n * ROWS, k * COLUMNS)


def _tile_params(x: Tensor, steps: int) -> Tensor:
    """[N, G] -> [N / 128, K / 128, 2, groups of a tile, 64], rows in the order w, g, second."""
    split = x.view(-1, 2, 4, 2, 8, steps, x.shape[1] // steps)
    return split.permute(0, 5, 1, 6, 2, 4, 3).flatten(4).contiguous()


def _untile_params(x: Tensor) -> Tensor:
    n, steps, _, groups, _ = x.shape
    split = x.reshape(n, steps, 2, groups, 4, 8, 2).permute(0, 2, 4, 6, 5, 1, 3)
    return split.reshape(n * ROWS, steps * groups)


def _pair(x: Tensor) -> Tensor:
    return x[..., ::2] | x[..., 1::2] << 4


def _unpair(x: Tensor) -> Tensor:
    return torch.stack((x & 15, x >> 4), -1).flatten(-2)
