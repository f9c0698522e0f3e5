"""Instances of the wide GEMM that tests compile."""

import torch

from tessera.kernels.cuda.gemm.weights import FORMATS, Format
from tessera.kernels.cuda.gemm.wide import SHAPES, Variant, instance
from tessera.kernels.cuda.templates import HOPPER, TemplateCase

_SAMPLE = {(32, 2, 2), (128, 4, 1), (256, 2, 1)}
"""Of the shapes: with two blocks an SM, with the fewest registers, with the most sums."""


def _case(shape: tuple[int, int, int], weights: Format, dtype: torch.dtype) -> TemplateCase:
    inst = instance(Variant(*shape), weights, dtype).inst
    sampled = shape in _SAMPLE and (dtype == torch.bfloat16 or weights.group == 128)
    return TemplateCase(inst.header, inst.expression, HOPPER, sampled=sampled)


CASES: list[TemplateCase] = [
    _case(shape, weights, dtype)
    for shape in SHAPES
    for weights in FORMATS
    for dtype in (torch.bfloat16, torch.float16)
]
