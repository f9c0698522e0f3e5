"""Products of int4 weights and 16-bit activations for few tokens, on the kernel of small.py
(csrc/cuda/gemm/small_half.cuh), from sm_80 on. Sums are in fp32 and in the order of K: a result depends on
the number of tokens and the variant, not on timing.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda import device, driver
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.gemm import half
from tessera.kernels.cuda.gemm.half_weights import CODE_BYTES, COLUMNS, PARAM_BYTES, HalfWeights
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.gemm.small import WHOLE_SM, Variant, configuration, grid
from tessera.kernels.cuda.launch import Kernel, kernel

_SIGNATURE: Final = "MPPPPPPPiiii"
_LOCAL_BYTES: Final = 16
"""What groups of 32 may keep in local memory over the main loop."""

ANYWHERE: Final = (Variant(8, strips=2, slices=4), Variant(16))
"""For every machine from sm_80 on."""
VARIANTS: Final = (
    *ANYWHERE,
    *(Variant(tokens, strips=2, slices=4, smem=WHOLE_SM) for tokens in (8, 16)),
    *(Variant(tokens, panels=2, strips=2, slices=4, smem=WHOLE_SM) for tokens in (8, 16)),
    *(Variant(tokens, panels=4, strips=2, smem=WHOLE_SM) for tokens in (8, 16)),
)
"""For Hopper: each was the fastest for some shape (notes/2026-11-30-gemm-half.md)."""


@dataclass(frozen=True, slots=True)
class Form:
    """Weights in groups of `group` columns (0: one scale a row), as half_weights.py lays them out."""

    group: int

    @property
    def tile_bytes(self) -> int:
        return CODE_BYTES + (COLUMNS // self.group * PARAM_BYTES if self.group else 0)

    @property
    def token_bytes(self) -> int:
        return 2 * COLUMNS

    @property
    def alignment(self) -> int:
        return 1024

    @property
    def work(self) -> float:
        """Fitted to an H200."""
        return 1.4


@cache
def instance(variant: Variant, dtype: torch.dtype, group: int) -> Kernel:
    """The kernel for the current device, or for an H200 where there is none.

    Raises KernelArgumentError where two stages do not fit.
    """
    config, smem = configuration(variant, Form(group), f"HalfProduct<{CPP_TYPES[dtype]}, {group}>")
    name = f"tessera::gemm::small_half<{config}, {CPP_TYPES[dtype]}>"
    return kernel(
        "gemm/small_half.cuh", name, signature=_SIGNATURE, max_smem=smem, allowed_local_bytes=_LOCAL_BYTES
    )


def launch(
    variant: Variant, weights: HalfWeights, x: Tensor, y: Tensor, bias: Tensor | None, scratch: Scratch
) -> None:
    """y [T, N] = x [T, K] W^T + bias [N], all of one 16-bit type, contiguous and 16-byte aligned, T > 0.

    Raises KernelArgumentError.
    """
    half.check(str(variant), weights, x, y, bias)
    (n, k), tokens = weights.tile.shape, x.shape[0]
    info = device.current()
    blocks = grid(n, k, tokens, info.sms, variant, Form(weights.group))
    scratch.require(
        str(variant),
        parts=2 * blocks * variant.rows * variant.tokens,
        counters=blocks * variant.row_warps,
    )
    if info.sm < 90:
        boxes = bytes(driver.TENSOR_MAP_BYTES)
    else:
        boxes = half.boxes(x.data_ptr(), tokens, k, variant.tokens)
    fn = instance(variant, x.dtype, weights.group)
    fn(
        blocks, variant.threads, boxes, weights.tiles, weights.row, x, 0 if bias is None else bias, y,
        scratch.parts, scratch.counters, tokens, n, k, -(-k // COLUMNS), smem=fn.max_smem, pdl=True,
    )  # fmt: skip
