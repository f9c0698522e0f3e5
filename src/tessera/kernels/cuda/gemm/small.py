"""Products of few tokens on mma.sync, bound by the bytes of weights (csrc/cuda/gemm/small.cuh).

Tiles and grids of any format, and the launch of integer products (small_int8.cuh; those of 16-bit rows are in
half_small.py): weights of 4 bits, in groups or with one scale a row, or of 8; int8 rows in tiles; int32 sums,
which no choice of tile, slice or grid changes. Any number of tokens is served, as machines before Hopper need
it; beyond a tile the weights are read once for every tile of tokens.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

import torch
from torch import Tensor

from tessera.kernels.cuda import device
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.gemm.weights import ROWS, Format, PackedWeights
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.cuda.tiled_rows import ATOM, STEP
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.types import TiledRows

HALF_SM: Final = 112 * 1024
"""Shared memory of a block that lets another, such as the next kernel's, share an SM of Hopper."""
WHOLE_SM: Final = 225 * 1024
MAX_STAGES: Final = 32
_SIGNATURE: Final = "PPPPPPPPPPiii"
_BARRIERS: Final = 16  # bytes of the two of a stage


class Stored(Protocol):
    """How operands lie: bytes of 64 rows of weights and of one token in a step of 128 columns, of what stages
    of the ring begin at multiples; and the work of such a step, by that of 4-bit weights and int8 rows.
    """

    @property
    def tile_bytes(self) -> int: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def work(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile of `tokens` by 64 `panels` rows; a warp has `strips` times 16 of the rows, and `slices` sets of
    warps take the steps of K in turn. The ring takes what there is of `smem` bytes.
    """

    tokens: int
    panels: int = 1
    strips: int = 1
    slices: int = 2
    smem: int = HALF_SM

    @property
    def rows(self) -> int:
        return ROWS * self.panels

    @property
    def row_warps(self) -> int:
        return 4 * self.panels // self.strips

    @property
    def threads(self) -> int:
        """Those that multiply, and two warps that copy."""
        return 32 * (2 + self.row_warps * self.slices)

    def __str__(self) -> str:
        smem = "" if self.smem == WHOLE_SM else f"m{self.smem >> 10}"
        return f"small{self.tokens}x{self.rows}s{self.strips}k{self.slices}{smem}"

    def stages(self, weights: Stored, limit: int) -> int:
        """How many fit where a block has `limit` bytes of shared memory; fewer than two are of no use."""
        free = min(self.smem, limit) - self.merge_bytes
        return min(MAX_STAGES, free // self.stage_bytes(weights))

    def stage_bytes(self, weights: Stored) -> int:
        used = self.slices * (self.panels * weights.tile_bytes + self.tokens * weights.token_bytes)
        return -(-used // weights.alignment) * weights.alignment + _BARRIERS

    @property
    def merge_bytes(self) -> int:
        """Where slices put their sums together."""
        return (self.slices - 1) * self.rows * self.tokens * 4


ANYWHERE: Final = (
    *(Variant(tokens) for tokens in (8, 16, 32)),
    *(Variant(tokens, smem=WHOLE_SM) for tokens in (48, 64)),
)
"""For every machine from sm_80 on."""
VARIANTS: Final = (
    *ANYWHERE,
    *(Variant(tokens, slices=4, smem=WHOLE_SM) for tokens in (8, 16, 32)),
    *(Variant(tokens, panels=2, smem=WHOLE_SM) for tokens in (8, 16, 32)),
    *(Variant(tokens, panels=2, strips=2, smem=WHOLE_SM) for tokens in (48, 64)),
    *(Variant(tokens, panels=4, strips=2, slices=1, smem=WHOLE_SM) for tokens in (32, 48)),
)
"""For Hopper: each was the fastest for some shape (notes/2026-11-30-gemm-small.md)."""


@cache
def instance(variant: Variant, weights: Format, dtype: torch.dtype) -> Kernel:
    """The kernel for the current device, or for an H200 where there is none.

    Raises KernelArgumentError where two stages do not fit.
    """
    config, smem = configuration(variant, weights, f"Int8Product<{weights.cpp}>")
    name = f"tessera::gemm::small_int8<{config}, {CPP_TYPES[dtype]}>"
    return kernel("gemm/small_int8.cuh", name, signature=_SIGNATURE, max_smem=smem)


def configuration(variant: Variant, weights: Stored, product: str) -> tuple[str, int]:
    """The C++ `Small` of `product`, and its bytes of shared memory.

    Raises KernelArgumentError where two stages do not fit.
    """
    stages = variant.stages(weights, smem_limit())
    if stages < 2:
        least = 2 * variant.stage_bytes(weights) + variant.merge_bytes
        raise KernelArgumentError(
            f"{variant}: two stages take {least} bytes of shared memory, a block has "
            f"{min(variant.smem, smem_limit())}: choose fewer tokens, panels or slices"
        )
    v, smem = variant, stages * variant.stage_bytes(weights) + variant.merge_bytes
    sizes = f"{v.tokens}, {v.panels}, {v.strips}, {v.slices}, {stages}"
    return f"tessera::gemm::Small<tessera::gemm::{product}, {sizes}>", smem


def smem_limit() -> int:
    """Bytes of shared memory that a block can have."""
    return min(WHOLE_SM, device.current().smem_per_block - 1024) if device.available() else WHOLE_SM


# Measured on an H200: bytes a clock, and clocks.
_STREAM: Final = 19  # from memory into one SM at most
_SHARE: Final = 17  # from memory into each of all SMs
_HALF: Final = 0.94  # of that with half the ring
_INTO: Final = 26  # from L2 into each of all SMs
_UNIT: Final = (90, 5.2)  # a step of 64 rows: fixed, and for each token
_CUT: Final = (2000, 1.1)  # to put cut tiles together: fixed, and for each sum of a tile


def clocks(units: int, steps: int, blocks: int, sms: int, variant: Variant, weights: Stored) -> float:
    """About how long `blocks` blocks take for a line of `units` in tiles of `steps`. Where two kernels find
    room side by side, the ring has been filled before.
    """
    unit = variant.panels * weights.work * (_UNIT[0] + _UNIT[1] * variant.tokens)
    weight_bytes = variant.panels * weights.tile_bytes
    most = -(-units // blocks)
    ahead = min(most, variant.stages(weights, WHOLE_SM) * variant.slices) if 2 * blocks <= sms else 0
    busiest = ahead * unit + (most - ahead) * max(unit, weight_bytes / _STREAM)
    share = _SHARE if variant.smem == WHOLE_SM else _SHARE * _HALF
    from_memory = units * weight_bytes / (share * sms)
    from_l2 = units * (weight_bytes + variant.tokens * weights.token_bytes) / (_INTO * sms)
    ends = _CUT[0] + _CUT[1] * variant.rows * variant.tokens if cuts(units, steps, blocks) else 0
    return max(busiest, from_memory, from_l2) + ends


def cuts(units: int, steps: int, blocks: int) -> int:
    """How many of the cuts into equal pieces divide a tile of `steps` units."""
    length, longer = divmod(units, blocks)
    return sum((i * length + min(i, longer)) % steps > 0 for i in range(1, blocks))


@cache
def grid(n: int, k: int, tokens: int, sms: int, variant: Variant, weights: Stored) -> int:
    """Into how many pieces to cut the line of units: one an SM; where all tokens fit a tile, in such a way
    that few tiles are divided, or so many fewer that none is.
    """
    steps, tiles = -(-k // STEP), -(-n // variant.rows) * -(-tokens // variant.tokens)
    units = tiles * steps
    most = min(units, sms)
    if tokens > variant.tokens:
        return most
    whole = next(b for b in range(min(tiles, sms), 0, -1) if tiles % b == 0)
    able = (*range(most, most * 95 // 100, -1), whole)

    def cost(blocks: int) -> float:
        # Every cut is traffic too: 132 pieces were 5 % slower than 128 that divide fewer tiles.
        fewer = 1 + cuts(units, steps, blocks) / 2000
        return clocks(units, steps, blocks, sms, variant, weights) * fewer

    best: int = min(able, key=cost)
    return best


def launch(
    variant: Variant,
    weights: PackedWeights,
    x: TiledRows,
    y: Tensor,
    bias: Tensor | None,
    scratch: Scratch,
) -> None:
    """y [T, N] = x W^T + bias; `y` contiguous and `bias` [N] are of one 16-bit type.

    Raises KernelArgumentError.
    """
    n, k = weights.tile.shape
    tokens, columns = x.shape
    if columns != k or y.shape != (tokens, n) or not y.is_contiguous() or y.numel() >= 2**31:
        raise KernelArgumentError(
            f"{variant}: weights {(n, k)} take x [T, {k}] and contiguous y [T, {n}] below 2^31 elements; "
            f"got x {x.shape} and y {tuple(y.shape)} with strides {y.stride()}"
        )
    if bias is not None and (bias.dtype != y.dtype or bias.shape != (n,)):
        raise KernelArgumentError(
            f"{variant}: bias must be {y.dtype} [{n}], got {bias.dtype} {tuple(bias.shape)}"
        )
    if not tokens:
        return
    sms = device.device_info(y.get_device()).sms
    blocks = grid(n, k, -(-tokens // ATOM) * ATOM, sms, variant, weights.form)
    scratch.require(
        str(variant),
        parts=2 * blocks * variant.rows * variant.tokens,
        counters=blocks * variant.row_warps,
    )
    fn = instance(variant, weights.form, y.dtype)
    fn(
        blocks, variant.threads, weights.tiles, weights.scale, weights.offset, 0 if bias is None else bias,
        x.codes, x.scale, x.row_sum, y, scratch.parts, scratch.counters, tokens, n, -(-k // STEP),
        smem=fn.max_smem, pdl=True,
    )  # fmt: skip
