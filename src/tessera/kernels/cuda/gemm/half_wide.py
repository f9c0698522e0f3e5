"""Products of int4 weights and 16-bit activations for many tokens on Hopper: tiles of wgmma.

csrc/cuda/gemm/half_wide.cuh. Sums are in fp32. Tiles that blocks share along K are added up in the order of
K, so a result depends on the number of tokens and the variant, but not on timing.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda import device
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.gemm import half
from tessera.kernels.cuda.gemm.half_weights import CODE_BYTES, COLUMNS, PARAM_BYTES, HalfWeights
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.launch import Kernel, kernel

MAX_STAGES: Final = 12
_SIGNATURE: Final = "MPPPPPPiiiii"
_PANEL: Final = 64
"""Rows of a warpgroup."""
_SMEM: Final = {False: 226 * 1024, True: 112 * 1024}
"""Dynamic shared memory of a block, and of one that takes half of an SM."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile of `tokens` by `rows` (64 for each warpgroup).

    `halves`: a block takes half of an SM, so that the next kernel's block can start, and ask for its weights,
    beside it.
    """

    tokens: int
    rows: int
    halves: bool = False

    def __str__(self) -> str:
        return f"wide{self.tokens}x{self.rows}" + "h" * self.halves

    @property
    def panels(self) -> int:
        return self.rows // _PANEL

    @property
    def threads(self) -> int:
        return 128 * (1 + self.panels)

    @property
    def slice_tokens(self) -> int:
        """In parts of which a cut tile is put together: `kSliceTokens` of half_wide_work.cuh."""
        return 64 if self.tokens >= 192 else 32 if self.tokens >= 96 else 16

    @property
    def slices(self) -> int:
        return self.tokens // self.slice_tokens

    def smem(self, stages: int, group: int) -> int:
        """Bytes: ring with its barriers, and for each warpgroup room to turn y around, and a vote."""
        weights = CODE_BYTES + (COLUMNS // group if group else 0) * PARAM_BYTES
        stage = self.panels * weights + self.tokens * 2 * COLUMNS
        output = 8192 if self.slice_tokens == 32 and self.panels < 4 else 4096
        return stages * (stage + 16) + self.panels * (output + 4)

    def stages(self, group: int) -> int:
        limit = _SMEM[self.halves]
        return next(s for s in range(MAX_STAGES, 0, -1) if self.smem(s, group) <= limit)


VARIANTS: Final = (
    *(Variant(tokens, 128, halves=True) for tokens in (32, 64)),
    *(Variant(tokens, 128) for tokens in (64, 128, 192, 256)),
    *(Variant(tokens, 192) for tokens in (64, 96, 128)),
    *(Variant(tokens, 256) for tokens in (32, 64, 96, 128)),
)
"""Those that were the fastest of all somewhere."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`grid` blocks; each of the first `cut_tiles` tiles is shared by `cuts` of them along K.

    `clocks`: what the busiest SM has to do, in its own clocks.
    """

    grid: int
    cut_tiles: int
    cuts: int
    clocks: float


PRODUCT_CLOCKS: Final = 1.21 / 16
"""Of a step, for each element of a tile: 128 products, 2048 a clock, at the clock of busy tensor cores."""
UNPACK_CLOCKS: Final = 387
"""To make a warpgroup's operands of a step, while others make theirs."""
LATENCY_CLOCKS: Final = (555, 3.2)
"""Of a warpgroup's step, and for each token: what other warpgroups have to hide."""
END_CLOCKS: Final = 0.055
"""To store y, for each of its elements."""
CUT_CLOCKS: Final = (1470, 1160, 0.22)
"""To put a cut tile together, for each block that has a part of it, and for each element."""


@cache
def plan(variant: Variant, n: int, k: int, tokens: int, sms: int) -> Plan:
    """Whole tiles go round the blocks; those that are left over are cut in as many equal runs of K as there
    are blocks for, where that is quicker.

    The clocks are fitted to timings on an H200 (notes/2026-11-30-gemm-half.md).
    """
    v = variant
    tiles = -(-tokens // v.tokens) * -(-n // v.rows)
    steps, elements = -(-k // COLUMNS), v.tokens * v.rows
    multiplied, unpacked = elements * PRODUCT_CLOCKS, v.panels * UNPACK_CLOCKS
    latency = LATENCY_CLOCKS[0] + LATENCY_CLOCKS[1] * v.tokens
    step = (multiplied**4 + unpacked**4 + latency**4) ** 0.25
    rest, rounds = tiles % sms, tiles // sms
    run = -(-steps // max(1, sms // max(rest, 1)))  # steps of a cut tile that a block does
    cuts = -(-steps // run)
    whole = steps * step + elements * END_CLOCKS
    once, part, element = CUT_CLOCKS
    cut = run * step + once + part * cuts + elements * (element + END_CLOCKS / cuts)
    if not rest or cuts == 1 or whole <= cut:
        return Plan(min(sms, tiles), 0, 1, (rounds + (rest > 0)) * whole)
    return Plan(sms if rounds else rest * cuts, rest, cuts, rounds * whole + cut)


@cache
def instance(variant: Variant, dtype: torch.dtype, group: int) -> Kernel:
    stages = variant.stages(group)
    shape = f"{variant.tokens}, {variant.panels}, {stages}, {1 + variant.halves}"
    return kernel(
        "gemm/half_wide.cuh",
        f"tessera::half::wide<tessera::half::Wide<{CPP_TYPES[dtype]}, {group}, {shape}>>",
        signature=_SIGNATURE,
        max_smem=variant.smem(stages, group),
    )


def launch(
    variant: Variant, weights: HalfWeights, x: Tensor, y: Tensor, bias: Tensor | None, scratch: Scratch
) -> None:
    """y [T, N] = x [T, K] W^T + bias [N], all of one 16-bit type, contiguous and 16-byte aligned, T > 0.

    Raises KernelArgumentError.
    """
    half.check(str(variant), weights, x, y, bias)
    (n, k), tokens = weights.tile.shape, x.shape[0]
    cut = plan(variant, n, k, tokens, device.current().sms)
    scratch.require(
        str(variant),
        counters=cut.cut_tiles * variant.panels * variant.slices,
        parts=cut.cut_tiles * cut.cuts * variant.tokens * variant.rows,
    )
    fn = instance(variant, x.dtype, weights.group)
    fn(
        cut.grid, variant.threads, half.boxes(x.data_ptr(), tokens, k, variant.tokens), weights.tiles,
        weights.row, 0 if bias is None else bias, y, scratch.parts, scratch.counters, tokens, n,
        -(-k // COLUMNS), cut.cut_tiles, cut.cuts, smem=fn.max_smem, pdl=True,
    )  # fmt: skip
