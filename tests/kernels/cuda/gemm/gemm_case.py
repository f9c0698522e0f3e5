"""Operands of the integer GEMMs on the device, and what a product of them must be to the last bit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.kernels.cuda.gemm import small
from tessera.kernels.cuda.gemm.weights import BYTES, CHANNELS, GROUPS, PackedWeights, layout_of
from tessera.kernels.cuda.tiled_rows import tile_rows
from tessera.kernels.types import QuantizedRows, TiledRows
from tessera.numerics import QTensor, plain
from tessera.spec import Pattern, Qtile, Recipe, progressive

FORMS = ("g128", "g64", "g32", "chn", "w8")
DEVICE = "cuda"
GUARD = 3
"""Rows behind the output that must stay as they were."""


@dataclass
class Weights:
    """Packed, and the integers [N, K] that the codes stand for."""

    packed: PackedWeights
    integers: Tensor

    @property
    def qtensor(self) -> QTensor:
        layout = layout_of(self.packed.tile.chain)
        assert layout is not None
        return layout.unpack(self.packed)


def weights(n: int, k: int, form: str, *, extreme: bool = False) -> Weights:
    """Random codes and parameters; `extreme`: operands of 0 and 255 (8 bits: -127 and 127) only."""
    device = DEVICE
    scale = torch.rand(n, 1, device=device).half() / 64 + 0.001
    if form == "w8":
        codes = torch.randint(-127, 128, (n, k), dtype=torch.int8, device=device)
        if extreme:
            codes = codes.sign() * 127
        tile = Qtile((n, k), Recipe.parse("w8a8").weight_chain())
        return Weights(BYTES.pack(_qtensor(tile, codes, {"scale": scale})), codes.int())
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32, device=device)
    if form == "chn":
        zero = torch.randint(0, 16, (n, 1), dtype=torch.uint8, device=device)
        if extreme:
            codes = (codes > 7) * 15
        tile = Qtile((n, k), Recipe.parse("w4a8-chn").weight_chain())
        packed = CHANNELS.pack(_qtensor(tile, codes.to(torch.uint8), {"scale": scale, "zero": zero}))
        return Weights(packed, codes - zero)
    group = int(form[1:])
    shape = (n, -(-k // group))
    step = torch.randint(1, 18, shape, dtype=torch.uint8, device=device)
    zero = torch.randint(0, 16, shape, dtype=torch.uint8, device=device)
    if extreme:  # (0 - 8) 16 + 128 = 0; (15 - 0) 8 + 128 = 248; (15 - 0) 1 + 128 is not extreme
        low = torch.rand(shape, device=device) < 0.5
        step, zero = (torch.where(low, a, b).to(torch.uint8) for a, b in ((16, 8), (8, 0)))
        codes = torch.where(low.repeat_interleave(group, 1)[:, :k], 0, 15)
    s, z = (p.int().repeat_interleave(group, 1)[:, :k] for p in (step, zero))
    codes = codes.maximum(z - 128 // s).minimum(z + 127 // s).clamp(0, 15)
    tile = Qtile((n, k), progressive(Pattern.blocks(1, group, ragged=k % group != 0)))
    values = {"scale": scale, "group_scale": step, "group_zero": zero}
    return Weights(GROUPS.pack(_qtensor(tile, codes.to(torch.uint8), values)), (codes - z) * s)


def _qtensor(tile: Qtile, codes: Tensor, values: dict[str, Tensor]) -> QTensor:
    tiles = tile.param_tiles()
    params = {name: plain(values[name].view(t.shape), t.chain) for name, t in tiles.items()}
    return QTensor(tile, codes, params)


def rows(tokens: int, k: int, *, extreme: bool = False, sparse: bool = False) -> tuple[TiledRows, Tensor]:
    """Random int8 rows, in tiles and as codes [T, K]. `sparse`: sums of few bits, so that each reaches y."""
    codes = torch.randint(-128, 128, (tokens, k), dtype=torch.int8, device=DEVICE)
    if extreme:
        codes = torch.where(codes[:, :1] < 0, -128, 127).to(torch.int8).expand(tokens, k).contiguous()
    if sparse:
        keep = torch.rand(tokens, k, device=DEVICE) < min(1.0, 12 / k)
        codes = (codes.sign() * keep).to(torch.int8)
    scale = torch.ones(tokens, device=DEVICE) if sparse else torch.rand(tokens, device=DEVICE) / 100 + 1e-4
    tiled = tile_rows(QuantizedRows(codes, scale, codes.sum(1, dtype=torch.int32)))
    missing = -tokens % 8
    if missing:  # tokens that do not exist hold anything
        tiled.codes[:, -1, 8 - missing :] = torch.randint(-128, 128, (128,), dtype=torch.int8, device=DEVICE)
    return tiled, codes


def poisoned(tokens: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """y [T, N] full of NaN and the memory it lies in, with GUARD rows behind it."""
    memory = torch.full((tokens + GUARD, n), float("nan"), dtype=dtype, device=DEVICE)
    return memory[:tokens], memory


def expected(w: Weights, x: TiledRows, codes: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What `finish` (gemm/dequant.cuh) makes of exact sums: float64 holds each step before it rounds."""
    sums = codes.double() @ w.integers.double().T
    scale = w.packed.scale[: len(w.integers)] * x.scale[:, None]
    y = sums.float().double() * scale.double()
    return (y if bias is None else y + bias.double()).float().to(dtype)


def wrong(got: Tensor, want: Tensor) -> int:
    """Elements that differ in any bit; +0 and -0 are the same number."""
    return int((got != want).sum())


def line(variant: small.Variant, n: int, k: int, tokens: int) -> tuple[int, int]:
    """Units of the line that blocks of small_gemm share, at least one each, and how many a tile has."""
    steps = -(-k // 128)
    return -(-n // variant.rows) * -(-tokens // variant.tokens) * steps, steps
