"""QoQ's two-level weights (QServe, Lin et al. 2024, section 4.1): groups of 4-bit codes inside int8 rows.

    level 1   u = round(w / scale)            int8 per output channel, kept inside +-119
    level 2   q = round(u / s) + z            0..15 per group, s an integer scale, z an integer zero point
    decode    w ~ scale * ((q - z) * s)       (q - z) * s has to fit int8

With level-1 values inside +-119 rounding to nearest cannot leave int8: a group spans at most 238, so s is at
most 16, and a value in range moves by at most s/2 = 8 = 127 - 119. A solver that picks other codes (GPTQ, a
shrunk range) can: [-119, 114] gives s = 16, z = 7, and code 15 decodes to 128. Hence `code_bounds`, which
every rounding clamps to and packers assert.
"""

from typing import Final

import torch
from torch import Tensor

PROTECTIVE_RANGE: Final = 119
"""Level-1 values stay in +-119; 120 already fails for the group [-119, 120]."""

CODES: Final = 15
"""Largest level-2 code."""


def code_bounds(group_scale: Tensor, group_zero: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (low, high) per group for which (q - z) * s stays in -128..127.

    Any real dtype and shape, s >= 1; the result has the dtype of the arguments.
    """
    low = (group_zero - torch.div(128, group_scale, rounding_mode="floor")).clamp(min=0)
    high = (group_zero + torch.div(127, group_scale, rounding_mode="floor")).clamp(max=CODES)
    return low, high


def group_params(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Level-2 (s, z) of groups whose level-1 values span low..high; float tensors of whole numbers.

    The range is extended to hold 0: z is stored in 0..15, so a group far from 0 would lose its far end.
    """
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / CODES).round().clamp(min=1)
    return scale, (-low / scale).round().clamp(0, CODES)


def to_level_1(values: Tensor, scale: Tensor) -> Tensor:
    """Level-1 values (whole numbers in +-119, as floats) of `values` under a broadcastable row scale."""
    return (values / scale).round().clamp(-PROTECTIVE_RANGE, PROTECTIVE_RANGE)
