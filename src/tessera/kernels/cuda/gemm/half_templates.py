"""Instances of the products of int4 weights and 16-bit activations that tests compile."""

import torch

from tessera.kernels.cuda.gemm.half import SMALL, WIDE, Variant, instance
from tessera.kernels.cuda.templates import HOPPER, TemplateCase

_SAMPLE = {Variant("small", 8), Variant("small", 16), Variant("wide", 64), Variant("wide", 128, 256)}
_BEFORE = ("sm_80",)


def _case(variant: Variant, dtype: torch.dtype, group: int, archs: tuple[str, ...]) -> TemplateCase:
    inst = instance(variant, dtype, group, archs == _BEFORE).inst
    sampled = variant in _SAMPLE and (dtype == torch.bfloat16 or group == 128)
    return TemplateCase(inst.header, inst.expression, archs, inst.allowed_local_bytes, sampled=sampled)


CASES: list[TemplateCase] = [
    _case(variant, dtype, group, archs)
    for variant in SMALL + WIDE
    if variant.blocks == 1
    for archs in ((_BEFORE, HOPPER) if variant.kind == "small" else (HOPPER,))
    for group in (32, 64, 128, 0)
    for dtype in (torch.bfloat16, torch.float16)
]
