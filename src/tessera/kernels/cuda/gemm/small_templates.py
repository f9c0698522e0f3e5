"""Instances of the GEMM for few tokens that tests compile."""

import torch

from tessera.kernels.cuda.gemm.small import ANYWHERE, VARIANTS, Variant, instance
from tessera.kernels.cuda.gemm.weights import FORMATS, Format
from tessera.kernels.cuda.templates import EVERYWHERE, HOPPER, TemplateCase

_SAMPLE = {VARIANTS[0], VARIANTS[len(ANYWHERE)], VARIANTS[-1]}
"""With two blocks an SM, with the most warps, with the most sums."""


def _case(variant: Variant, weights: Format, dtype: torch.dtype) -> TemplateCase:
    inst = instance(variant, weights, dtype).inst
    sampled = variant in _SAMPLE and (dtype == torch.bfloat16 or weights.group == 128)
    archs = EVERYWHERE if variant in ANYWHERE else HOPPER
    return TemplateCase(inst.header, inst.expression, archs, sampled=sampled)


_ONE = instance(VARIANTS[0], Format(4, 128), torch.bfloat16).inst
CASES: list[TemplateCase] = [
    *(_case(v, f, dtype) for v in VARIANTS for f in FORMATS for dtype in (torch.bfloat16, torch.float16)),
    TemplateCase(_ONE.header, _ONE.expression, HOPPER, options=("-DTESSERA_NO_BULK_COPY",)),
]
