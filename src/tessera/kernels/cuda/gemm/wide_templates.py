"""Instances of the wide GEMM that tests compile."""

import torch

from tessera.kernels.cuda.gemm.weights import FORMATS, Format
from tessera.kernels.cuda.gemm.wide import VARIANTS, Variant, instance
from tessera.kernels.cuda.templates import HOPPER, TemplateCase

_SAMPLE = (Variant(32, 2, halves=True), Variant(128, 2, teams=2), Variant(256, 2))
"""In half of an SM, with two teams, with the most sums."""


def _case(variant: Variant, weights: Format, dtype: torch.dtype) -> TemplateCase:
    inst = instance(variant, weights, dtype).inst
    sampled = variant in _SAMPLE and (dtype == torch.bfloat16 or weights.group == 128)
    return TemplateCase(inst.header, inst.expression, HOPPER, sampled=sampled)


CASES: list[TemplateCase] = [
    _case(variant, weights, dtype)
    for variant in VARIANTS
    if variant.blocks == 1  # what a launch gives an SM is no part of an instance
    for weights in FORMATS
    for dtype in (torch.bfloat16, torch.float16)
]
