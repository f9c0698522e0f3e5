"""Which instance runs how many tokens of int4 weights and 16-bit activations: measured, or of least cost."""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.gemm import half
from tessera.kernels.cuda.gemm.choose import BUCKETS
from tessera.kernels.cuda.gemm.half import SMALL, WIDE, Variant
from tessera.kernels.cuda.gemm.half_measured import MEASURED
from tessera.kernels.cuda.gemm.half_weights import COLUMNS

Split = Literal["none", "last", "all"]
SPLITS: Final[tuple[Split, ...]] = ("none", "last", "all")


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant, and the tiles it cuts along K: none, those of the last round, all where possible."""

    variant: Variant
    split: Split

    def __str__(self) -> str:
        return f"{self.variant}_{self.split}"


_US: Final[dict[tuple[str, int, int, int], tuple[float, float, float]]] = {
    ("small", 8, 128, 1): (0.313, 4.8, 0),
    ("small", 8, 128, 2): (0.584, 5.6, 0),
    ("small", 16, 128, 1): (0.455, 5.4, 0),
    ("small", 16, 128, 2): (0.713, 8.2, 0),
    ("wide", 16, 128, 1): (0.455, 4.2, 0),
    ("wide", 16, 128, 2): (0.755, 5.3, 0),
    ("wide", 32, 128, 1): (0.466, 4.3, 0),
    ("wide", 32, 128, 2): (0.79, 6.9, 0),
    ("wide", 64, 128, 1): (0.598, 5.6, 0),
    ("wide", 64, 128, 2): (1.04, 9.0, 0),
    ("wide", 128, 128, 1): (0.82, 4.5, 4.0),
    ("wide", 192, 128, 1): (1.15, 4.5, 6.6),
    ("wide", 256, 128, 1): (1.46, 4.5, 7.0),
    ("wide", 32, 256, 1): (0.825, 7.2, 0),
    ("wide", 64, 256, 1): (1.03, 8.2, 0),
    ("wide", 128, 256, 1): (1.46, 4.5, 9.5),
}
"""Microseconds of a block's step of K, of a launch besides, and of putting cut tiles together: fitted to an
H200, groups of 128, bf16. Other machines and formats rank alike.
"""


def split_of(choice: Choice, n: int, tokens: int, sms: int) -> int:
    """How many tiles `choice` cuts."""
    tiles = half.tiles_of(choice.variant, n, tokens)
    options = half.splits(choice.variant, tiles, sms)
    match choice.split:
        case "none":
            return 0
        case "last":
            return tiles % (sms * choice.variant.blocks)
        case "all":
            return options[-1]


def cost_us(choice: Choice, n: int, k: int, tokens: int, sms: int) -> float:
    """The busiest block's steps and what a launch costs besides."""
    variant, steps = choice.variant, -(-k // COLUMNS)
    tiles, split = half.tiles_of(variant, n, tokens), split_of(choice, n, tokens, sms)
    blocks = sms * variant.blocks
    cut = half.cut(tiles, steps, blocks, split)
    load = -(-(tiles - split) // blocks) * steps + (cut.quota if split else 0)
    step, launch, join = _US[variant.kind, variant.tokens, variant.rows, variant.blocks]
    return launch + load * step + (join if split else 0)


def choose(n: int, k: int, tokens: int, info: DeviceInfo) -> Choice:
    """The cheapest variant for one product; measured where the shape was measured on such a device."""
    variants = SMALL if info.sm < 90 else (*SMALL, *WIDE)
    able = [Choice(variant, split) for variant in variants for split in SPLITS]
    name = MEASURED.get(info.name, {}).get((n, k), {}).get(tokens)
    for choice in able:
        if str(choice) == name:
            return choice
    return min(able, key=lambda choice: cost_us(choice, n, k, tokens, info.sms))


@cache
def plan(n: int, k: int, info: DeviceInfo) -> tuple[Choice, ...]:
    """A choice for each of BUCKETS."""
    return tuple(choose(n, k, tokens, info) for tokens in BUCKETS)
