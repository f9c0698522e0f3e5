"""int8 activations: symmetric per token, computed at run time from the token itself."""

from typing import Final, NamedTuple

import torch
from torch import Tensor

ACTIVATION_MAX: Final = 127


class Rows(NamedTuple):
    """codes int8 [T, K] in -127..127, scale float32 [T], row_sum int32 [T]: the sum of a row's codes."""

    codes: Tensor
    scale: Tensor
    row_sum: Tensor


def quantize_rows(x: Tensor) -> Rows:
    """int8 rows of floats `x` [T, K]; every operation below is fp32, so kernels can match it bit for bit.

        scale = max|x| / 127,  codes = round_half_even(x * (1 / scale))

    A row of zeros (or below 1.5e-36, where the scale would not be a normal number) gets scale 1 and codes 0.
    A row with NaN or Inf gets codes 0 where it has none and a non-finite scale: what is computed from it is
    then not finite either, instead of plausible.
    """
    x = x.float()
    scale = x.abs().amax(dim=-1) / ACTIVATION_MAX
    empty = scale < torch.finfo(torch.float32).smallest_normal
    scale = scale.masked_fill(empty, 1.0)
    scaled = (x * scale.reciprocal().unsqueeze(-1)).masked_fill(empty.unsqueeze(-1), 0.0)
    codes = scaled.round().nan_to_num(0.0).to(torch.int8)
    return Rows(codes, scale, codes.sum(dim=-1, dtype=torch.int32))


def dequantize_rows(rows: Rows) -> Tensor:
    """float32 [T, K]."""
    return rows.codes.float() * rows.scale.unsqueeze(-1)
