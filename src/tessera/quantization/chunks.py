"""Tensors a few rows at a time, so that what is computed from them stays small."""

from collections.abc import Iterator

from torch import Tensor


def row_chunks(x: Tensor, size: int) -> Iterator[Tensor]:
    """x [T, …] as views of at most `size` rows; one empty view where there are none."""
    for start in range(0, max(1, len(x)), size):
        yield x[start : start + size]
