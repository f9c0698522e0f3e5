"""A quantized tensor: a Qtile and its data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tessera.spec import Float, Grid, Qtile

FLOAT_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@dataclass(frozen=True, slots=True)
class QTensor:
    """`codes` (one element per code, not packed) in an integer type that holds the grid, or floats where
    the chain is plain; `params` holds each parameter of the chain by name, itself a QTensor.
    """

    tile: Qtile
    codes: Tensor
    params: Mapping[str, "QTensor"] = field(default_factory=dict)


def code_dtype(grid: Grid | Float) -> torch.dtype:
    """Narrowest torch type that holds the grid's codes; the float type itself for a Float."""
    if isinstance(grid, Float):
        return FLOAT_DTYPES[grid.name]
    if grid.bits <= 8:
        return torch.int8 if grid.signed else torch.uint8
    if grid.bits <= 15 + grid.signed:
        return torch.int16
    return torch.int32 if grid.bits <= 31 + grid.signed else torch.int64
