"""Products of int4 weights and 16-bit activations on wgmma: template instances, how work is cut, launching.

csrc/cuda/gemm/half_wide.cuh; few tokens: half_small.py. Sums are in fp32. Tiles that blocks share are added
up in the order of K, so a result depends on the number of tokens but not on timing.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda import device, driver
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.gemm.half_weights import CODE_BYTES, COLUMNS, PARAM_BYTES, HalfWeights
from tessera.kernels.cuda.gemm.scratch import COUNTERS, Scratch
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.errors import KernelArgumentError

ALIGNMENT: Final = 8
"""K is a multiple of it: rows of x begin at multiples of 16 bytes."""
LOCAL_BYTES: Final = 32
"""Local memory an instance may use, for what it keeps over a main loop; the loops themselves use none."""
_SIGNATURE: Final = "MPPPPPPiiiiiii"
_SMEM: Final = {1: 226 * 1024, 2: 112 * 1024}
"""Dynamic shared memory that a block may have where an SM holds one, or two."""
_MAX_STAGES: Final = 8
_MAX_ROUNDS_CUT: Final = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """A tile of `tokens` by `rows` (128 or 256), in `blocks` blocks an SM."""

    tokens: int
    rows: int = 128
    blocks: int = 1

    def __str__(self) -> str:
        return f"wide{self.tokens}x{self.rows}" + ("x2" if self.blocks == 2 else "")

    @property
    def light(self) -> bool:
        """Whether an SM has room for two blocks, be they of two launches."""
        return self.rows == 128 and self.tokens <= 64

    @property
    def threads(self) -> int:
        """Eight warps and one that copies, or warpgroups of 64 rows and one that gives away registers."""
        return 288 if self.light else 2 * self.rows + 128

    def smem(self, stages: int, group: int) -> int:
        return stages * self._stage_bytes(group) + self.rows * 64

    def stages(self, group: int) -> int:
        limit = _SMEM[2 if self.light else 1]
        return min(_MAX_STAGES, (limit - self.smem(0, group)) // self._stage_bytes(group))

    def _stage_bytes(self, group: int) -> int:
        half = CODE_BYTES + (COLUMNS // group if group else 0) * PARAM_BYTES
        return self.rows // 64 * half + self.tokens * 2 * COLUMNS


VARIANTS: Final = (
    *(Variant(tokens, 128, blocks) for tokens in (16, 32, 64) for blocks in (1, 2)),
    *(Variant(tokens, 128) for tokens in (128, 192, 256)),
    *(Variant(tokens, 256) for tokens in (32, 64, 128)),
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
    if tiles < _MAX_ROUNDS_CUT * blocks and tiles * variant.rows // 16 <= COUNTERS:
        choices.add(tiles)
    return tuple(sorted(choices))


@cache
def instance(variant: Variant, dtype: torch.dtype, group: int) -> Kernel:
    stages = variant.stages(group)
    shape = f"{variant.tokens}, {variant.rows // 64}, {stages}"
    return kernel(
        "gemm/half_wide.cuh",
        f"tessera::half::wide<tessera::half::Wide<{CPP_TYPES[dtype]}, {group}, {shape}>>",
        signature=_SIGNATURE,
        max_smem=variant.smem(stages, group),
        allowed_local_bytes=LOCAL_BYTES,
    )


def tiles_of(variant: Variant, n: int, tokens: int) -> int:
    return -(-tokens // variant.tokens) * -(-n // variant.rows)


def needs(variant: Variant, cut: Cut) -> tuple[int, int]:
    """Counters (by warp of a cut tile) and parts (two a block) of scratch a launch takes."""
    if not cut.split_tiles:
        return 0, 0
    return cut.split_tiles * variant.rows // 16, 2 * cut.grid * variant.tokens * variant.rows


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
    check(str(variant), weights, x, y, bias)
    (n, k), tokens = weights.tile.shape, x.shape[0]
    tiles, steps = tiles_of(variant, n, tokens), weights.tiles.shape[1]
    share = cut(tiles, steps, device.current().sms * variant.blocks, split)
    counters, parts = needs(variant, share)
    scratch.require(str(variant), counters=counters, parts=parts)
    fn = instance(variant, x.dtype, weights.group)
    fn(
        share.grid, variant.threads, boxes(x.data_ptr(), tokens, k, variant.tokens), weights.tiles,
        weights.row, 0 if bias is None else bias, y, scratch.parts, scratch.counters, tokens, n, k, steps,
        split, share.quota, tiles, smem=fn.max_smem, pdl=True,
    )  # fmt: skip


boxes: Final = lru_cache(maxsize=4096)(driver.tensor_map_16bit)
"""Tensor maps of what launches read again and again."""


def check(kernel_id: str, weights: HalfWeights, x: Tensor, y: Tensor, bias: Tensor | None) -> None:
    """Raises KernelArgumentError where a product cannot take its operands."""
    (n, k), tokens = weights.tile.shape, x.shape[0]
    for name, tensor, shape in (("x", x, (tokens, k)), ("y", y, (tokens, n)), ("bias", bias, (n,))):
        if tensor is not None and not _fits(tensor, shape, x.dtype):
            raise KernelArgumentError(
                f"{kernel_id}: {name} must be contiguous, aligned {x.dtype} {shape}; got {tensor.dtype} "
                f"{tuple(tensor.shape)}, strides {tensor.stride()}, address {tensor.data_ptr():#x}"
            )


def _fits(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return (
        tensor.shape == shape
        and tensor.dtype == dtype
        and tensor.is_contiguous()
        and tensor.data_ptr() % (16 if len(shape) == 2 else 2) == 0
    )
