"""Which instance runs how many tokens of int4 weights and 16-bit activations: measured, or of least cost."""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor

from tessera.kernels.cuda import device
from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.gemm import half, half_small, small
from tessera.kernels.cuda.gemm.choose import BUCKETS
from tessera.kernels.cuda.gemm.half_measured import MEASURED
from tessera.kernels.cuda.gemm.half_weights import COLUMNS, HalfWeights
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.launch import Kernel

Split = Literal["none", "last", "all"]
SPLITS: Final[tuple[Split, ...]] = ("none", "last", "all")


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant, and of one of half.py the tiles it cuts along K: none, those of the last round, all where
    possible. (Those of half_small.py cut as small.py says.)
    """

    variant: half.Variant | small.Variant
    split: Split = "none"

    def __str__(self) -> str:
        return f"{self.variant}_{self.split}" if isinstance(self.variant, half.Variant) else str(self.variant)

    def instance(self, dtype: torch.dtype, group: int) -> Kernel:
        if isinstance(self.variant, half.Variant):
            return half.instance(self.variant, dtype, group)
        return half_small.instance(self.variant, dtype, group)

    def launch(
        self, weights: HalfWeights, x: Tensor, y: Tensor, bias: Tensor | None, scratch: Scratch
    ) -> None:
        """y = x W^T + bias; see the `launch` of the variant's module."""
        if isinstance(self.variant, half.Variant):
            split = split_of(self, weights.tile.shape[0], x.shape[0], device.current().sms)
            half.launch(self.variant, split, weights, x, y, bias, scratch)
        else:
            half_small.launch(self.variant, weights, x, y, bias, scratch)


WIDE: Final = tuple(Choice(variant, split) for variant in half.VARIANTS for split in SPLITS)
SMALL: Final = tuple(Choice(variant) for variant in half_small.VARIANTS)
ANYWHERE: Final = tuple(Choice(variant) for variant in half_small.ANYWHERE)


_US: Final[dict[tuple[int, int, int], tuple[float, float, float]]] = {
    (16, 128, 1): (0.455, 4.2, 0),
    (16, 128, 2): (0.755, 5.3, 0),
    (32, 128, 1): (0.466, 4.3, 0),
    (32, 128, 2): (0.79, 6.9, 0),
    (64, 128, 1): (0.598, 5.6, 0),
    (64, 128, 2): (1.04, 9.0, 0),
    (128, 128, 1): (0.82, 4.5, 4.0),
    (192, 128, 1): (1.15, 4.5, 6.6),
    (256, 128, 1): (1.46, 4.5, 7.0),
    (32, 256, 1): (0.825, 7.2, 0),
    (64, 256, 1): (1.03, 8.2, 0),
    (128, 256, 1): (1.46, 4.5, 9.5),
}
"""Microseconds of a block's step of K, of a launch besides, and of putting cut tiles together: fitted to an
H200, groups of 128, bf16. Other machines and formats rank alike.
"""
_GROUP: Final = 128
"""What costs of few tokens are computed for."""


def split_of(choice: Choice, n: int, tokens: int, sms: int) -> int:
    """How many tiles `choice`, of a variant of half.py, cuts."""
    assert isinstance(choice.variant, half.Variant)
    tiles = half.tiles_of(choice.variant, n, tokens)
    options = half.splits(choice.variant, tiles, sms)
    match choice.split:
        case "none":
            return 0
        case "last":
            return tiles % (sms * choice.variant.blocks)
        case "all":
            return options[-1]


def cost_us(choice: Choice, n: int, k: int, tokens: int, info: DeviceInfo) -> float:
    """The busiest block's steps and what a launch costs besides."""
    variant, steps, sms = choice.variant, -(-k // COLUMNS), info.sms
    if isinstance(variant, small.Variant):
        form = half_small.Form(_GROUP)
        blocks = small.grid(n, k, tokens, sms, variant, form)
        units = -(-tokens // variant.tokens) * -(-n // variant.rows) * steps
        return 1.5 + small.clocks(units, steps, blocks, sms, variant, form) / info.clock_mhz
    tiles, split = half.tiles_of(variant, n, tokens), split_of(choice, n, tokens, sms)
    blocks = sms * variant.blocks
    cut = half.cut(tiles, steps, blocks, split)
    load = -(-(tiles - split) // blocks) * steps + (cut.quota if split else 0)
    step, launch, join = _US[variant.tokens, variant.rows, variant.blocks]
    return launch + load * step + (join if split else 0)


def choose(n: int, k: int, tokens: int, info: DeviceInfo) -> Choice:
    """The cheapest variant for one product; measured where the shape was measured on such a device."""
    able = ANYWHERE if info.sm < 90 else (*SMALL, *WIDE)
    name = MEASURED.get(info.name, {}).get((n, k), {}).get(tokens)
    for choice in able:
        if str(choice) == name:
            return choice
    return min(able, key=lambda choice: cost_us(choice, n, k, tokens, info))


@cache
def plan(n: int, k: int, info: DeviceInfo) -> tuple[Choice, ...]:
    """A choice for each of BUCKETS."""
    return tuple(choose(n, k, tokens, info) for tokens in BUCKETS)
