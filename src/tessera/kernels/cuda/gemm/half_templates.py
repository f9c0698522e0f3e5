"""Instances of the products of int4 weights and 16-bit activations that tests compile."""

import torch

from tessera.kernels.cuda.gemm import half_small, half_wide
from tessera.kernels.cuda.gemm.half_choose import SMALL, WIDE, Choice
from tessera.kernels.cuda.templates import EVERYWHERE, HOPPER, TemplateCase

_SAMPLE = {
    half_small.VARIANTS[0],
    half_small.VARIANTS[-1],
    half_wide.Variant(64, 128),
    half_wide.Variant(128, 192),
}
_GROUPS = (32, 64, 128, 0)


def _case(choice: Choice, dtype: torch.dtype, group: int) -> TemplateCase:
    inst = choice.instance(dtype, group).inst
    sampled = choice.variant in _SAMPLE and (dtype == torch.bfloat16 or group == 128)
    archs = EVERYWHERE if choice.variant in half_small.ANYWHERE else HOPPER
    return TemplateCase(inst.header, inst.expression, archs, inst.allowed_local_bytes, sampled=sampled)


_ONE = half_small.instance(half_small.VARIANTS[0], torch.bfloat16, 128).inst
CASES: list[TemplateCase] = [
    *(
        _case(choice, dtype, group)
        for choice in (*SMALL, *WIDE)
        for group in _GROUPS
        for dtype in (torch.bfloat16, torch.float16)
    ),
    TemplateCase(_ONE.header, _ONE.expression, HOPPER, options=("-DTESSERA_NO_BULK_COPY",)),
]
