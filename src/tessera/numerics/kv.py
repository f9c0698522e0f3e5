"""KV4: 4-bit keys and values, one fp16 scale and one fp16 minimum per token and head, found at run time."""

from typing import Final, NamedTuple

import torch
from torch import Tensor

KV_CODES: Final = 15
SMALLEST_SCALE: Final = 2.0**-24
"""Smallest positive fp16: the scale of a head whose values are all equal."""


class KvCodes(NamedTuple):
    """codes uint8 [..., D] in 0..15; scale and minimum float16 [...]: value = code * scale + minimum."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor


def quantize_kv(x: Tensor) -> KvCodes:
    """4-bit codes of keys (after rotary embedding) or values, floats `x` [..., head_dim].

        scale = fp16(max((max - min) / 15, 2^-24)),  minimum = fp16(min)
        codes = clamp(round_half_even((x - minimum) * (1 / scale)), 0, 15)

    in fp32, with the rounded scale and minimum, so decoding has no error beyond half a step (and, at the
    ends, what rounding them moved). Equals `quantize(x, recipe.kv_chain())`. NaN, Inf and values beyond
    fp16 give a non-finite scale or minimum, so the decoded head is not finite either.
    """
    x = x.float()
    low, high = x.amin(dim=-1), x.amax(dim=-1)
    scale = ((high - low) / KV_CODES).clamp(min=SMALLEST_SCALE).to(torch.float16)
    minimum = low.to(torch.float16)
    offset = x - minimum.float().unsqueeze(-1)
    codes = (offset * scale.float().reciprocal().unsqueeze(-1)).round().clamp(0, KV_CODES).nan_to_num(0.0)
    return KvCodes(codes.to(torch.uint8), scale, minimum)


def dequantize_kv(kv: KvCodes) -> Tensor:
    """float32 [..., head_dim]."""
    return kv.codes.float() * kv.scale.float().unsqueeze(-1) + kv.minimum.float().unsqueeze(-1)
