"""Checks of tensors on their way to C++."""

import torch
from torch import Tensor

from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.types import QuantizedRows


def check_rows(kernel: str, argument: str, x: Tensor, width: int, dtype: torch.dtype = torch.float32) -> int:
    """Number of rows of `x`, [rows, width] and contiguous. Raises KernelArgumentError."""
    shape = x.shape
    fits = len(shape) == 2 and shape[1] == width and x.dtype is dtype and x.is_contiguous() and x.is_cpu
    if not fits:
        raise KernelArgumentError(
            f"{kernel}: {argument} is {describe(x)}, wanted contiguous {dtype} [T, {width}] on the CPU"
        )
    return shape[0]


def check_vector(kernel: str, argument: str, x: Tensor, length: int, dtype: torch.dtype) -> None:
    """Raises KernelArgumentError unless `x` is [length] and contiguous."""
    if x.shape != (length,) or x.dtype is not dtype or not x.is_contiguous() or not x.is_cpu:
        raise KernelArgumentError(
            f"{kernel}: {argument} is {describe(x)}, wanted contiguous {dtype} [{length}] on the CPU"
        )


def describe(x: Tensor) -> str:
    order = "contiguous" if x.is_contiguous() else f"strided {x.stride()}"
    return f"{order} {x.dtype} {list(x.shape)} on {x.device}"


def check_quantized(kernel: str, x: object, width: int) -> int:
    """Number of rows of QuantizedRows. Raises KernelArgumentError."""
    if not isinstance(x, QuantizedRows):
        raise KernelArgumentError(f"{kernel}: x is a float tensor, wanted QuantizedRows")
    rows = check_rows(kernel, "x.codes", x.codes, width, torch.int8)
    check_vector(kernel, "x.scale", x.scale, rows, torch.float32)
    check_vector(kernel, "x.row_sum", x.row_sum, rows, torch.int32)
    return rows


def empty_rows(rows: int, width: int) -> QuantizedRows:
    """Uninitialised int8 rows for a kernel to fill."""
    return QuantizedRows(
        torch.empty(rows, width, dtype=torch.int8),
        torch.empty(rows, dtype=torch.float32),
        torch.empty(rows, dtype=torch.int32),
    )


def pad_vector(x: Tensor, multiple: int) -> Tensor:
    """float32 copy of `x` [N], zeros up to a multiple of `multiple`."""
    out = torch.zeros(-(-x.numel() // multiple) * multiple)
    out[: x.numel()] = x.flatten()
    return out
