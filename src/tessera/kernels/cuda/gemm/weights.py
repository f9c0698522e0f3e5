"""How int4 and int8 weights lie for the integer GEMMs: tiles of 64 rows by 128 columns, one bulk copy each.

    4 bits   codes [2][128 threads][16 bytes], then for each group of its columns [32 row pairs][4 bytes]
    8 bits   [64 rows][128 bytes] under the 128-byte swizzle, an operand of wgmma and ldmatrix as it lies

Thread 32 w + 4 g + t of a warpgroup holds rows 16 w + g and 16 w + g + 8, as mma.sync and wgmma want operand
A. Its 16 bytes of half h are the k = 32 steps 2 h and 2 h + 1: for each, columns 4 t ... 4 t + 3 in the low
nibbles and 16 + 4 t ... in the high ones, of the first row and then of the second. A row pair's parameters
are (s, b) of each row: the group's scale and b = 255 - z s, so that the operand is q s + (b - 127) =
(q - z) s + 128, in 0..255 for every code inside `code_bounds`. Without groups (one scale a row) the operand
is the code itself.

What the operand has too much, times the sum of a token's codes, comes off in the epilogue: `offset`.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tessera.kernels.cuda.tiled_rows import STEP, swizzle
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import Layout
from tessera.numerics.progressive import code_bounds
from tessera.numerics.qtensor import QTensor, plain
from tessera.spec import F16, S8N, Chain, Pattern, Qtile, affine_zero, group_of, progressive, symmetric

ROWS: Final = 64
"""Rows of a tile."""
CODE_BYTES: Final = ROWS * STEP // 2
PARAM_BYTES: Final = 2 * ROWS
"""Parameters of one group of a tile."""
GROUP_SIZES: Final = (32, 64, 128)
_BIAS: Final = 255


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored: 8 bits, or 4 with `group` columns a group (0: one scale a row)."""

    bits: int
    group: int

    def __str__(self) -> str:
        return "w8" if self.bits == 8 else f"g{self.group}" if self.group else "chn"

    @property
    def cpp(self) -> str:
        return "tessera::gemm::Int8" if self.bits == 8 else f"tessera::gemm::Int4<{self.group}>"

    @property
    def tile_bytes(self) -> int:
        if self.bits == 8:
            return ROWS * STEP
        return CODE_BYTES + (STEP // self.group * PARAM_BYTES if self.group else 0)

    @property
    def token_bytes(self) -> int:
        """Of a step of 128 columns."""
        return STEP

    @property
    def alignment(self) -> int:
        """Of what small_int8.cuh reads."""
        return 128

    @property
    def work(self) -> float:
        return 1.0


FORMATS: Final = (*(Format(4, group) for group in (32, 64, 128, 0)), Format(8, 0))


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """`tiles` uint8 [ceil(N / 64), ceil(K / 128), bytes]; `scale` float32, `offset` int32 [64 ceil(N / 64)].

    y[t, n] = (sum_k operand[n, k] x[t, k] - offset[n] row_sum[t]) * scale[n] * x_scale[t]. Rows from N on
    hold scale 0; columns from K on hold whatever a code may be, and meet zero activations.
    """

    tile: Qtile
    tiles: Tensor
    scale: Tensor
    offset: Tensor

    @property
    def bits(self) -> int:
        return 8 if self.tiles.shape[2] == ROWS * STEP else 4

    @property
    def group(self) -> int:
        """Columns of a group, or 0 where a row has one scale."""
        return group_of(self.tile.chain) or 0

    @property
    def form(self) -> Format:
        return Format(self.bits, self.group)

    @property
    def nbytes(self) -> int:
        return self.tiles.nbytes + self.scale.nbytes + self.offset.nbytes


def pack_groups(weight: QTensor) -> PackedWeights:
    """QoQ's two levels. Raises KernelArgumentError where a code leaves int8 (`code_bounds`), or the b of a
    group a byte.
    """
    group = group_of(weight.chain)
    assert group is not None
    step, zero = (weight.params[name].codes for name in ("group_scale", "group_zero"))
    _check_parameters(weight, step, zero)
    step, zero = _pad_rows(step), _pad_rows(zero)
    per_tile = STEP // group
    missing = -step.shape[1] % per_tile
    step, zero = F.pad(step, (0, missing)).clamp(min=1), F.pad(zero, (0, missing))
    codes = _pad_rows(weight.codes)
    # A missing column holds the zero point, which every group may.
    columns = zero.repeat_interleave(group, 1)
    columns[:, : codes.shape[1]] = codes
    _check_codes(weight, columns, step, zero, group)
    pairs = torch.stack((step, (_BIAS - zero.int() * step).to(torch.uint8)), -1)  # [N, groups, 2]
    # Rows 16 w + 8 second + g, groups of each tile -> [N / 64, K / 128, group of the tile, w, g, second, 2]
    tiled = pairs.view(-1, 4, 2, 8, step.shape[1] // per_tile, per_tile, 2).permute(0, 4, 5, 1, 3, 2, 6)
    tiles = torch.cat((_tile_nibbles(columns), tiled.flatten(2)), -1)
    scale = _pad_rows(weight.params["scale"].codes.float())[:, 0]
    return PackedWeights(weight.tile, tiles, scale, torch.full_like(scale, 128, dtype=torch.int32))


def unpack_groups(packed: PackedWeights) -> QTensor:
    """Inverse of `pack_groups`."""
    n, k = packed.tile.shape
    group, tiles = packed.group, packed.tiles
    codes = _untile_nibbles(tiles[..., :CODE_BYTES])[:n, :k].contiguous()
    pairs = tiles[..., CODE_BYTES:].view(*tiles.shape[:2], STEP // group, 4, 8, 2, 2)
    pairs = pairs.permute(0, 3, 5, 4, 1, 2, 6)
    pairs = pairs.flatten(4, 5).flatten(0, 3)[:n, : -(-k // group)]  # [N, groups, 2]
    step = pairs[..., 0]
    zero = (_BIAS - pairs[..., 1].int()) // step.clamp(min=1)
    values = {"group_scale": step, "group_zero": zero.to(torch.uint8), "scale": packed.scale[:n, None].half()}
    return _qtensor(packed.tile, codes, values)


def pack_channels(weight: QTensor) -> PackedWeights:
    """4-bit codes with one scale and zero point a row."""
    tiles = _tile_nibbles(F.pad(_pad_rows(weight.codes), (0, -weight.shape[1] % STEP)))
    scale, zero = (_pad_rows(weight.params[name].codes)[:, 0] for name in ("scale", "zero"))
    return PackedWeights(weight.tile, tiles, scale.float(), zero.int())


def unpack_channels(packed: PackedWeights) -> QTensor:
    """Inverse of `pack_channels`."""
    n, k = packed.tile.shape
    codes = _untile_nibbles(packed.tiles)[:n, :k].contiguous()
    values = {"scale": packed.scale[:n, None].half(), "zero": packed.offset[:n, None].to(torch.uint8)}
    return _qtensor(packed.tile, codes, values)


def pack_bytes(weight: QTensor) -> PackedWeights:
    """int8 codes, symmetric, one scale a row."""
    codes = F.pad(_pad_rows(weight.codes), (0, -weight.shape[1] % STEP)).view(torch.uint8)
    tiles = codes.view(-1, ROWS, codes.shape[1] // STEP, STEP).transpose(1, 2)
    scale = _pad_rows(weight.params["scale"].codes.float())[:, 0]
    return PackedWeights(
        weight.tile, swizzle(tiles).flatten(2), scale, torch.zeros_like(scale, dtype=torch.int32)
    )


def unpack_bytes(packed: PackedWeights) -> QTensor:
    """Inverse of `pack_bytes`."""
    n, k = packed.tile.shape
    rows = swizzle(packed.tiles.view(*packed.tiles.shape[:2], ROWS, STEP))
    codes = rows.transpose(1, 2).flatten(2).flatten(0, 1)
    codes = codes[:n, :k].contiguous().view(torch.int8)
    return _qtensor(packed.tile, codes, {"scale": packed.scale[:n, None].half()})


GROUPS: Final = Layout("int4_tiles64_groups", 1, "cuda", pack_groups, unpack_groups)
CHANNELS: Final = Layout("int4_tiles64", 1, "cuda", pack_channels, unpack_channels)
BYTES: Final = Layout("int8_tiles64", 1, "cuda", pack_bytes, unpack_bytes)


def layout_of(chain: Chain) -> Layout | None:
    """The layout that holds weights of `chain`: two levels with groups, or one scale a row; else None."""
    if chain == symmetric(S8N, Pattern.channel(), F16):
        return BYTES
    if chain == affine_zero(4, Pattern.channel()):
        return CHANNELS
    group = group_of(chain)
    if group not in GROUP_SIZES:
        return None
    patterns = (Pattern.blocks(1, group, ragged=ragged) for ragged in (False, True))
    return GROUPS if any(chain == progressive(pattern) for pattern in patterns) else None


def packed_bytes(tile: Qtile) -> int:
    """`PackedWeights.nbytes` of a weight of `tile`."""
    panels, steps = (-(-size // unit) for size, unit in zip(tile.shape, (ROWS, STEP), strict=True))
    form = Format(tile.chain.codes.bits, group_of(tile.chain) or 0)
    return panels * (steps * form.tile_bytes + ROWS * (4 + 4))


def pack(weight: QTensor) -> PackedWeights:
    """`weight`, of a chain that has a layout, packed on the current CUDA device.

    One that is asked for twice (tied embeddings) is held once, as long as the original lives. Raises
    KernelArgumentError where a code leaves int8.
    """
    layout = layout_of(weight.chain)
    assert layout is not None, weight.chain
    params, held = _packed.get(weight.codes, (None, None))  # type: ignore[no-untyped-call]
    if params is not weight.params:
        held = layout.pack(weight.to("cuda"))
        _packed[weight.codes] = weight.params, held
    packed: PackedWeights = held
    return packed


_packed: Final = WeakTensorKeyDictionary()


def _pad_rows(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[0] % ROWS))


def _tile_nibbles(codes: Tensor) -> Tensor:
    """Codes uint8 [N, K], whole tiles -> [N / 64, K / 128, 4096]."""
    n, k = codes.shape
    split = codes.view(
        n // ROWS, 4, 2, 8, k // STEP, 2, 2, 2, 4, 4
    )  # tile, w, second, g | tile, h, j, high, t, byte
    # -> tiles, h, w, g, t, j, second, byte, high
    split = split.permute(0, 4, 5, 1, 3, 8, 6, 2, 9, 7)
    return (split[..., 0] | split[..., 1] << 4).flatten(2)


def _untile_nibbles(tiles: Tensor) -> Tensor:
    n, k = tiles.shape[0] * ROWS, tiles.shape[1] * STEP
    halves = torch.stack((tiles & 15, tiles >> 4), -1)
    codes = halves.view(*tiles.shape[:2], 2, 4, 8, 4, 2, 2, 4, 2)
    return codes.permute(0, 3, 7, 4, 1, 2, 6, 9, 5, 8).reshape(n, k)


def _check_parameters(weight: QTensor, step: Tensor, zero: Tensor) -> None:
    """Lanes of a word carry into each other where b = 255 - z s is negative; a scale of 0 loses z."""
    bad = (step == 0) | (step.int() * zero > _BIAS)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        s, z = int(step[row, column]), int(zero[row, column])
        raise KernelArgumentError(
            f"row {row}, group {column} of a weight {tuple(weight.shape)}: scale {s} and zero point {z}; "
            f"taken are scales of 1 or more whose product with the zero point is at most {_BIAS}"
        )


def _check_codes(weight: QTensor, codes: Tensor, step: Tensor, zero: Tensor, group: int) -> None:
    low, high = code_bounds(step.float(), zero.float())
    blocks = codes.view(len(codes), -1, group)
    least, most = blocks.amin(-1), blocks.amax(-1)
    bad = (least < low) | (most > high)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        s, z = int(step[row, column]), int(zero[row, column])
        raise KernelArgumentError(
            f"row {row}, group {column} of a weight {tuple(weight.shape)}: codes {int(least[row, column])}.."
            f"{int(most[row, column])} with scale {s} and zero point {z} leave int8 (allowed "
            f"{int(low[row, column])}..{int(high[row, column])}); quantize again with the codes clamped"
        )


def _qtensor(tile: Qtile, codes: Tensor, values: dict[str, Tensor]) -> QTensor:
    tiles = tile.param_tiles()
    params = {name: plain(x.contiguous(), tiles[name].chain) for name, x in values.items()}
    return QTensor(tile, codes, params)


__all__ = ["BYTES", "CHANNELS", "GROUPS", "ROWS", "PackedWeights", "layout_of", "pack", "packed_bytes"]
