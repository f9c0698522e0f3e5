"""Checks of tensors on their way to C++."""

import torch
from torch import Tensor

from tessera.kernels.errors import KernelArgumentError


def check_rows(
    kernel: str,
    argument: str,
    x: Tensor,
    width: int,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
) -> int:
    """Number of rows of `x`, [rows, width] and contiguous. Raises KernelArgumentError."""
    shape = x.shape
    fits = len(shape) == 2 and shape[1] == width and (rows is None or shape[0] == rows)
    if fits and x.dtype is dtype and x.is_contiguous() and x.is_cpu:
        return shape[0]
    wanted = f"contiguous {dtype} [{'T' if rows is None else rows}, {width}] on the CPU"
    raise KernelArgumentError(f"{kernel}: {argument} is {describe(x)}, wanted {wanted}")


def check_vector(kernel: str, argument: str, x: Tensor, length: int, dtype: torch.dtype) -> None:
    """Raises KernelArgumentError unless `x` is [length] and contiguous."""
    if x.shape != (length,) or x.dtype is not dtype or not x.is_contiguous() or not x.is_cpu:
        raise KernelArgumentError(
            f"{kernel}: {argument} is {describe(x)}, wanted contiguous {dtype} [{length}] on the CPU"
        )


def describe(x: Tensor) -> str:
    order = "contiguous" if x.is_contiguous() else f"strided {x.stride()}"
    return f"{order} {x.dtype} {list(x.shape)} on {x.device}"


def pad_vector(x: Tensor, multiple: int) -> Tensor:
    """float32 copy of `x` [N], zeros up to a multiple of `multiple`."""
    out = torch.zeros(-(-x.numel() // multiple) * multiple)
    out[: x.numel()] = x.flatten()
    return out
