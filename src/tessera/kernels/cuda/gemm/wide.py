"""Integer products of many tokens on Hopper: tiles of wgmma (csrc/cuda/gemm/wide.cuh).

Weights of 4 bits, in groups or with one scale a row, or of 8; int8 rows in tiles; int32 sums, which no choice
of tile or split changes.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda import driver
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.device import device_info
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.gemm.weights import ROWS, Format, PackedWeights
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.cuda.tiled_rows import STEP
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.types import TiledRows

MAX_COLUMNS: Final = (2**31 - 1) // (255 * 128)
"""Operands of 0..255 times activations of -128..127 add up to less than 2^31 in as many columns."""
MAX_STAGES: Final = 12
_SIGNATURE: Final = "MPPPPPPPPPPiiiii"
_SMEM: Final = {False: 226 * 1024, True: 112 * 1024}
"""Dynamic shared memory of a block, and of one that takes half of an SM."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile of `tokens` by 64 `panels` rows, each panel the work of `teams` warpgroups.

    `halves`: a block takes half of an SM. Then `blocks` is how many of this launch an SM gets: 2, or 1 so
    that the next kernel's block can start, and ask for its weights, beside it.
    """

    tokens: int
    panels: int
    teams: int = 1
    halves: bool = False
    blocks: int = 1

    @property
    def rows(self) -> int:
        return ROWS * self.panels

    @property
    def warpgroups(self) -> int:
        return self.panels * self.teams

    @property
    def slice_tokens(self) -> int:
        """What is stored at once, and of a cut tile put together at once: `kSliceTokens` of wide_work.cuh."""
        return 64 if self.tokens >= 192 else 32 if self.tokens >= 96 else 16

    @property
    def slices(self) -> int:
        return self.tokens // self.slice_tokens

    def __str__(self) -> str:
        return f"wide{self.tokens}x{self.rows}" + "t2" * (self.teams == 2) + f"h{self.blocks}" * self.halves

    def smem(self, stages: int, weights: Format) -> int:
        """Bytes: ring, what two epilogues need, y on its way to memory, barriers."""
        ring = stages * (self.tokens * STEP + self.panels * weights.tile_bytes)
        buffers = 3 if self.tokens >= 128 and self.teams == 1 else 2
        output = buffers * self.slice_tokens * ROWS * 2
        barriers = (2 * stages + 4) * 8 + 4 * self.warpgroups
        return ring + 2 * (self.tokens * 8 + self.rows * 16) + self.warpgroups * output + barriers

    def stages(self, weights: Format) -> int:
        """As many as fit, a multiple of the teams."""
        limit = _SMEM[self.halves]
        counts = range(MAX_STAGES, 0, -self.teams)
        return next(s for s in counts if self.smem(s, weights) <= limit)


VARIANTS: Final = (
    *(Variant(tokens, 2, halves=True, blocks=blocks) for tokens in (16, 32, 64) for blocks in (1, 2)),
    *(Variant(tokens, panels) for tokens in (64, 96, 128) for panels in (2, 3, 4)),
    *(Variant(tokens, 4) for tokens in (16, 32)),
    *(Variant(tokens, 2, teams=2) for tokens in (32, 64, 128)),
    *(Variant(tokens, 2) for tokens in (192, 256)),
)
"""Those that fit registers and shared memory and were the fastest of all somewhere, or near it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`grid` blocks; each of the first `cut_tiles` tiles is shared by `cuts` of them along K.

    `clocks`: what the busiest SM has to do, if memory does not hold it up, in its own clocks.
    """

    grid: int
    cut_tiles: int
    cuts: int
    clocks: float


SECOND_CLOCKS: Final = 3020
"""To have two blocks an SM instead of one."""
MULTIPLY_RATE: Final = 0.96
"""Of the tensor cores' 4096 products a clock."""
LATENCY_CLOCKS: Final = 2.31
"""Of a warpgroup's step, for each token: what other warpgroups have to hide."""
COPY_CLOCKS: Final = (26.2, 74.8)
"""To have a step copied, and for each copy."""
COPY_BYTES: Final = 104
"""Bytes a clock of such copies."""
RING_CLOCKS: Final = 2160
"""From asking for a stage to having multiplied it, which the stages of a ring share."""
END_CLOCKS: Final = 0.012
"""To store y, for each of its elements."""
CUT_CLOCKS: Final = (2740, 1100, 0.229)
"""To put a cut tile together, for each block that has a part of it, and for each element."""


@cache
def plan(variant: Variant, weights: Format, n: int, k: int, tokens: int, sms: int) -> Plan:
    """Whole tiles go round the blocks; those that are left over are cut where that is quicker.

    The clocks are fitted to timings on an H200 by benchmarks/fit_gemm.py (notes/2026-11-30-gemm-engine.md).
    """
    v = variant
    tiles = -(-tokens // v.tokens) * -(-n // v.rows)
    steps, blocks, elements = -(-k // STEP), sms * v.blocks, v.tokens * v.rows
    multiplied = v.blocks * elements / 32 / MULTIPLY_RATE
    stage = v.tokens * STEP + v.panels * weights.tile_bytes
    copied = COPY_CLOCKS[0] + COPY_CLOCKS[1] * (1 + v.panels) + v.blocks * stage / COPY_BYTES
    latency = LATENCY_CLOCKS * v.tokens / v.teams
    awaited = RING_CLOCKS / v.stages(weights)
    step = (multiplied**4 + latency**4 + copied**4 + awaited**4) ** 0.25
    rest, rounds = tiles % blocks, tiles // blocks
    run = -(-steps // max(1, blocks // max(rest, 1)))  # steps of a cut tile that a block does
    cuts = -(-steps // run)
    whole = steps * step + elements * END_CLOCKS
    once, part, element = CUT_CLOCKS
    cut = run * step + once + part * cuts + elements * (element + END_CLOCKS / cuts)
    start = (v.blocks - 1) * SECOND_CLOCKS
    if not rest or cuts == 1 or whole <= cut:
        return Plan(min(blocks, tiles), 0, 1, start + (rounds + (rest > 0)) * whole)
    return Plan(blocks if rounds else rest * cuts, rest, cuts, start + rounds * whole + cut)


@cache
def instance(variant: Variant, weights: Format, dtype: torch.dtype) -> Kernel:
    stages = variant.stages(weights)
    shape = f"{variant.tokens}, {variant.panels}, {variant.teams}, {stages}, {1 + variant.halves}"
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
    form = weights.form
    cut = plan(variant, form, n, k, tokens, device_info(y.get_device()).sms)
    scratch.require(
        str(variant),
        counters=cut.cut_tiles * variant.panels * variant.slices,
        parts=cut.cut_tiles * cut.cuts * variant.tokens * variant.rows,
    )
    fn = instance(variant, form, y.dtype)
    fn(
        cut.grid, 128 * (1 + variant.warpgroups), _boxes(y, variant.slice_tokens), weights.tiles, x.codes,
        weights.offset, weights.scale, 0 if bias is None else bias, x.row_sum, x.scale, y, scratch.parts,
        scratch.counters, tokens, n, -(-k // STEP), cut.cut_tiles, cut.cuts, smem=fn.max_smem, pdl=True,
    )  # fmt: skip


def _boxes(y: Tensor, box_tokens: int) -> bytes:
    """The tensor map by which y is stored; zeros where rows do not begin at multiples of 16 bytes."""
    tokens, n = y.shape
    return bytes(driver.TENSOR_MAP_BYTES) if n % 8 else _tensor_map(y.data_ptr(), tokens, n, box_tokens)


_tensor_map: Final = lru_cache(maxsize=4096)(driver.tensor_map_16bit)
