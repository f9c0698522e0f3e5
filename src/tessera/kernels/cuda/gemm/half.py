"""Products of int4 weights and 16-bit activations on CUDA: template instances, how work is cut, launching.

`small` (csrc/cuda/gemm/half_small.cuh) is mma.sync for 8 or 16 tokens a tile and runs from sm_80 on; `wide`
(half_wide.cuh) is wgmma. Both sum in fp32. Tiles that blocks share are added up in the order of K, so a
result depends on the number of tokens but not on timing.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, Literal

import torch
from torch import Tensor

from tessera.kernels.cuda import device, driver
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.gemm.half_weights import CODE_BYTES, COLUMNS, PARAM_BYTES, HalfWeights
from tessera.kernels.cuda.gemm.scratch import COUNTERS, Scratch
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.errors import KernelArgumentError

Kind = Literal["small", "wide"]
ALIGNMENT: Final = 8
"""K is a multiple of it: rows of x begin at multiples of 16 bytes."""
LOCAL_BYTES: Final = 32
"""Local memory an instance may use, for what it keeps over a main loop; the loops themselves use none."""
_SIGNATURES: Final = {"small": "MPPPPPPPiiiiiii", "wide": "MPPPPPPiiiiiii"}
_SMEM: Final = {1: 226 * 1024, 2: 112 * 1024}
"""Dynamic shared memory that a block may have where an SM holds one, or two."""
_SMEM_SM_80: Final = 98 * 1024
"""The least that a block may have on machines before Hopper."""
_MAX_STAGES: Final = 8
THREE_BLOCKS_STAGES: Final = 6
"""Of a ring of which three fit an SM; half_small.cuh takes registers for three blocks then too."""
_MAX_ROUNDS_CUT: Final = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile of `tokens` by `rows` (128; `wide` 256 too), in `blocks` blocks an SM."""

    kind: Kind
    tokens: int
    rows: int = 128
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.kind}{self.tokens}x{self.rows}" + ("x2" if self.blocks == 2 else "")

    @property
    def light(self) -> bool:
        """Whether an SM has room for two blocks, be they of two launches."""
        return self.kind == "small" or (self.rows == 128 and self.tokens <= 64)

    @property
    def threads(self) -> int:
        """Eight warps and one that copies, or warpgroups of 64 rows and one that gives away registers."""
        return 288 if self.light else 2 * self.rows + 128

    def smem(self, stages: int, group: int) -> int:
        ends = self.rows * 64 if self.kind == "wide" else self.tokens * (self.rows + 4) * 4
        return stages * self._stage_bytes(group) + ends

    def stages(self, group: int, before_hopper: bool = False) -> int:
        limit = _SMEM_SM_80 if before_hopper else _SMEM[2 if self.light else 1]
        # One block an SM leaves room for two of the launches after it; two need longer rings instead (on an
        # H200 6 % faster and 30 % slower with 6 stages).
        most = THREE_BLOCKS_STAGES if (self.tokens, self.blocks) == (8, 1) else _MAX_STAGES
        stages = min(most, (limit - self.smem(0, group)) // self._stage_bytes(group))
        return stages // 2 * 2 if self.kind == "small" else stages

    def _stage_bytes(self, group: int) -> int:
        half = CODE_BYTES + (COLUMNS // group if group else 0) * PARAM_BYTES
        return self.rows // 64 * half + self.tokens * 2 * COLUMNS


SMALL: Final = tuple(Variant("small", tokens, 128, blocks) for tokens in (8, 16) for blocks in (1, 2))
WIDE: Final = (
    *(Variant("wide", tokens, 128, blocks) for tokens in (16, 32, 64) for blocks in (1, 2)),
    *(Variant("wide", tokens, 128) for tokens in (128, 192, 256)),
    *(Variant("wide", tokens, 256) for tokens in (32, 64, 128)),
)


@dataclass(frozen=True, slots=True)
class Cut:
    """`grid` blocks; the first `split_tiles` tiles are cut into runs of `quota` steps of K, one a block, the
    others are dealt whole.
    """

    grid: int
    split_tiles: int
    quota: int


def cut(tiles: int, steps: int, blocks: int, split: int) -> Cut:
    """`split` tiles in equal runs; a run is at most as long as leaves a block two parts of tiles."""
    quota = -(-split * steps // blocks)
    whole = min(blocks, tiles - split)
    return Cut(max(whole, -(-split * steps // quota) if split else 0), split, max(quota, 1))


def splits(variant: Variant, tiles: int, sms: int) -> tuple[int, ...]:
    """How many tiles may be cut: none, those of the last round of blocks, or all where counters suffice."""
    blocks = sms * variant.blocks
    choices = {0, tiles % blocks}
    if tiles < _MAX_ROUNDS_CUT * blocks and (
        variant.kind == "small" or tiles * variant.rows // 16 <= COUNTERS
    ):
        choices.add(tiles)
    return tuple(sorted(choices))


@cache
def instance(variant: Variant, dtype: torch.dtype, group: int, before_hopper: bool = False) -> Kernel:
    stages = variant.stages(group, before_hopper)
    shape = f"{variant.tokens}, {variant.rows // 64}" if variant.kind == "wide" else str(variant.tokens)
    config = f"tessera::half::{variant.kind.capitalize()}<{CPP_TYPES[dtype]}, {group}, {shape}, {stages}>"
    return kernel(
        f"gemm/half_{variant.kind}.cuh",
        f"tessera::half::{variant.kind}<{config}>",
        signature=_SIGNATURES[variant.kind],
        max_smem=variant.smem(stages, group),
        allowed_local_bytes=LOCAL_BYTES,
    )


def tiles_of(variant: Variant, n: int, tokens: int) -> int:
    return -(-tokens // variant.tokens) * -(-n // variant.rows)


def needs(variant: Variant, cut: Cut) -> tuple[int, int]:
    """Counters (by block, or by warp of a cut tile) and parts (two a block) of scratch a launch takes."""
    if not cut.split_tiles:
        return 0, 0
    counters = cut.grid if variant.kind == "small" else cut.split_tiles * variant.rows // 16
    return counters, 2 * cut.grid * variant.tokens * variant.rows


def launch(
    variant: Variant,
    split: int,
    weights: HalfWeights,
    x: Tensor,
    y: Tensor,
    bias: Tensor | None,
    scratch: Scratch,
) -> None:
    """y [T, N] = x [T, K] W^T + bias [N], all of one 16-bit type, contiguous and 16-byte aligned, T > 0.

    The first `split` tiles are cut along K. Raises KernelArgumentError.
    """
    (n, k), tokens = weights.tile.shape, x.shape[0]
    for name, tensor, shape in (("x", x, (tokens, k)), ("y", y, (tokens, n)), ("bias", bias, (n,))):
        if tensor is not None and not _fits(tensor, shape, x.dtype):
            raise KernelArgumentError(
                f"{variant}: {name} must be contiguous, aligned {x.dtype} {shape}; got {tensor.dtype} "
                f"{tuple(tensor.shape)}, strides {tensor.stride()}, address {tensor.data_ptr():#x}"
            )
    info = device.current()
    tiles, steps = tiles_of(variant, n, tokens), weights.tiles.shape[1]
    share = cut(tiles, steps, info.sms * variant.blocks, split)
    counters, parts = needs(variant, share)
    scratch.require(str(variant), counters=counters, parts=parts)
    before_hopper = info.sm < 90
    address = x.data_ptr()
    boxes = bytes(driver.TENSOR_MAP_BYTES) if before_hopper else _boxes(address, tokens, k, variant.tokens)
    fn = instance(variant, x.dtype, weights.group, before_hopper)
    fn(
        share.grid, variant.threads, boxes, weights.tiles, weights.row,
        *((address,) if variant.kind == "small" else ()), 0 if bias is None else bias, y, scratch.parts,
        scratch.counters, tokens, n, k, steps, split, share.quota, tiles,
        smem=fn.max_smem, pdl=not before_hopper,
    )  # fmt: skip


_boxes: Final = lru_cache(maxsize=4096)(driver.tensor_map_16bit)


def _fits(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return (
        tensor.shape == shape
        and tensor.dtype == dtype
        and tensor.is_contiguous()
        and tensor.data_ptr() % (16 if len(shape) == 2 else 2) == 0
    )
