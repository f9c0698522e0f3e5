"""int8 rows on their way from one compiled kernel to the next.

A decode step hands over some 120 of them, and making three tensors, checking them and asking for their
addresses would cost more than the kernels between them. Here they are one allocation, whose addresses are
known and whose tensors are made only for those who ask.
"""

from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import check_rows, check_vector
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.types import QuantizedRows

_ALIGNMENT: Final = 64


class Int8Rows(QuantizedRows):
    """Uninitialised rows for a kernel to fill: codes [T, K], then scales [T], then row sums [T]."""

    __slots__ = ("_buffer", "_shape", "_vectors", "addresses")
    _buffer: Tensor
    _shape: tuple[int, int]
    _vectors: int
    addresses: tuple[int, int, int]

    def __init__(self, rows: int, width: int) -> None:
        vectors = -(-rows * width // _ALIGNMENT) * _ALIGNMENT
        buffer = torch.empty(vectors + 8 * rows, dtype=torch.uint8)
        base = buffer.data_ptr()
        set_field = object.__setattr__  # the base class is frozen
        set_field(self, "_buffer", buffer)
        set_field(self, "_shape", (rows, width))
        set_field(self, "_vectors", vectors)
        set_field(self, "addresses", (base, base + vectors, base + vectors + 4 * rows))

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def codes(self) -> Tensor:
        rows, width = self._shape
        return self._buffer[: rows * width].view(torch.int8).view(rows, width)

    @property
    def scale(self) -> Tensor:
        return self._vector(0, torch.float32)

    @property
    def row_sum(self) -> Tensor:
        return self._vector(1, torch.int32)

    def _vector(self, index: int, dtype: torch.dtype) -> Tensor:
        rows = self._shape[0]
        start = self._vectors + 4 * rows * index
        return self._buffer[start : start + 4 * rows].view(dtype)


def addresses_of(kernel: str, x: object, width: int) -> tuple[int, tuple[int, int, int]]:
    """(rows, addresses of codes, scales and row sums). Raises KernelArgumentError for anything else."""
    if type(x) is Int8Rows and x.shape[1] == width:
        return x.shape[0], x.addresses
    if not isinstance(x, QuantizedRows):
        raise KernelArgumentError(f"{kernel}: x is a float tensor, wanted QuantizedRows")
    rows = check_rows(kernel, "x.codes", x.codes, width, torch.int8)
    check_vector(kernel, "x.scale", x.scale, rows, torch.float32)
    check_vector(kernel, "x.row_sum", x.row_sum, rows, torch.int32)
    return rows, (x.codes.data_ptr(), x.scale.data_ptr(), x.row_sum.data_ptr())
