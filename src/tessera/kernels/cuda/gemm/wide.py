"""Integer products of many tokens on Hopper: tiles of wgmma (csrc/cuda/gemm/wide.cuh).

Weights of 4 bits, in groups or with one scale a row, or of 8; int8 rows in tiles; int32 sums, which no choice
of tile or split changes.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.device import device_info
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.gemm.weights import ROWS, Format, PackedWeights
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.cuda.tiled_rows import STEP
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import YES, Verdict, no
from tessera.kernels.types import TiledRows

MAX_COLUMNS: Final = (2**31 - 1) // (255 * 128)
"""Operands of 0..255 times activations of -128..127 add up to less than 2^31 in as many columns."""
SHAPES: Final = (
    *((tokens, groups, 1) for tokens in (16, 32, 64, 96, 128) for groups in (2, 3, 4)),
    *((tokens, 2, 2) for tokens in (16, 32, 64, 96)),
    (192, 2, 1),
    (256, 2, 1),
)
"""(tokens, warpgroups, blocks an SM) that fit registers and shared memory."""
MAX_STAGES: Final = 12
_SIGNATURE: Final = "PPPPPPPPPPiiiiii"
_SMEM: Final = {1: 226 * 1024, 2: 112 * 1024}
"""Dynamic shared memory that a block may have where an SM holds one, or two."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile of `tokens` by 64 `warpgroups` rows, in `blocks` blocks an SM.

    `split`: tiles that would leave SMs without work are cut along K. `stagger`: steps by which each
    warpgroup of a block starts behind the one before it, so that they do not all store at once.
    """

    tokens: int
    warpgroups: int
    blocks: int = 1
    split: bool = True
    stagger: int = 1
    fill: int = 0

    @property
    def rows(self) -> int:
        return ROWS * self.warpgroups

    def __str__(self) -> str:
        return f"wide{self.tokens}x{self.rows}" + ("x2" if self.blocks == 2 else "")

    def smem(self, stages: int, weights: Format) -> int:
        """Bytes of a block: ring, what two epilogues need, a kilobyte a warp to turn y around."""
        ring = stages * (self.tokens * STEP + self.warpgroups * weights.tile_bytes)
        return ring + 2 * (self.tokens * 8 + self.rows * 16) + 4 * self.warpgroups * 1024

    def stages(self, weights: Format) -> int:
        limit = _SMEM[self.blocks]
        return next(s for s in range(MAX_STAGES, 0, -1) if self.smem(s, weights) <= limit)


@dataclass(frozen=True, slots=True)
class Plan:
    """`grid` blocks; the first `split_tiles` tiles are cut into runs of `quota` steps, one a block."""

    grid: int
    split_tiles: int
    quota: int


def plan(variant: Variant, n: int, k: int, tokens: int, sms: int) -> Plan:
    """Whole tiles go round the blocks; those of the last, incomplete round are cut and shared by all."""
    tiles = -(-tokens // variant.tokens) * -(-n // variant.rows)
    steps, blocks = -(-k // STEP), sms * (variant.fill or variant.blocks)
    rest = tiles % blocks
    if not variant.split or rest >= FULL_ENOUGH * blocks:
        rest = 0
    quota = max(-(-rest * steps // blocks), min(MIN_QUOTA, steps))
    whole = min(blocks, tiles - rest)
    return Plan(max(whole, -(-rest * steps // quota)), rest, quota)


FULL_ENOUGH: Final = 0.9
"""Of a round of tiles: cutting the last one would gain less than putting it together costs."""
MIN_QUOTA: Final = 4
"""Steps of a cut tile a block does at least."""


def limits(columns: int) -> Verdict:
    """What this family does not do, whatever the variant."""
    if columns > MAX_COLUMNS:
        return no(f"int32 sums hold {MAX_COLUMNS} columns, not {columns}")
    return YES


@cache
def instance(variant: Variant, weights: Format, dtype: torch.dtype) -> Kernel:
    stages = variant.stages(weights)
    shape = f"{variant.tokens}, {variant.warpgroups}, {stages}, {variant.blocks}"
    config = f"{weights.cpp}, {CPP_TYPES[dtype]}, {shape}"
    return kernel(
        "gemm/wide.cuh",
        f"tessera::gemm::wide<tessera::gemm::Wide<{config}>>",
        signature=_SIGNATURE,
        max_smem=variant.smem(stages, weights),
    )


def launch(
    variant: Variant,
    weights: PackedWeights,
    x: TiledRows,
    y: Tensor,
    bias: Tensor | None,
    scratch: Scratch,
) -> None:
    """y [T, N] = x W^T + bias; `y` and `bias` [N] are of one 16-bit type, contiguous, 16-byte aligned.

    Raises KernelArgumentError.
    """
    n, k = weights.tile.shape
    tokens, columns = x.shape
    if columns != k or y.shape != (tokens, n) or not y.is_contiguous() or y.data_ptr() % 16:
        raise KernelArgumentError(
            f"{variant}: weights {(n, k)} take x [T, {k}] and aligned contiguous y [T, {n}]; got x {x.shape} "
            f"and y {tuple(y.shape)} with strides {y.stride()} at {y.data_ptr():#x}"
        )
    if bias is not None and (bias.dtype != y.dtype or bias.shape != (n,)):
        raise KernelArgumentError(
            f"{variant}: bias must be {y.dtype} [{n}], got {bias.dtype} {tuple(bias.shape)}"
        )
    if not tokens:
        return
    cut = plan(variant, n, k, tokens, device_info(y.device.index).sms)
    scratch.require(
        str(variant),
        counters=cut.split_tiles * 4 * variant.warpgroups,
        parts=2 * cut.grid * variant.tokens * variant.rows if cut.split_tiles else 0,
    )
    form = weights.form
    fn = instance(variant, form, y.dtype)
    fn(
        cut.grid, 128 * (1 + variant.warpgroups), weights.tiles, x.codes, weights.offset, weights.scale,
        0 if bias is None else bias, x.row_sum, x.scale, y, scratch.parts, scratch.counters, tokens, n,
        -(-k // STEP), cut.split_tiles, cut.quota, variant.stagger, smem=fn.max_smem, pdl=True,
    )  # fmt: skip
