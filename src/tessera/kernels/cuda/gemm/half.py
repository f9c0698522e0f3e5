"""Products of int4 weights and 16-bit activations: what those of few tokens (half_small.py) and of many
(half_wide.py) share.
"""

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda import driver
from tessera.kernels.cuda.gemm.half_weights import HalfWeights
from tessera.kernels.errors import KernelArgumentError

ALIGNMENT: Final = 8
"""K is a multiple of it: rows of x begin at multiples of 16 bytes."""
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
