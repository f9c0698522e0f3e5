"""GPTQ: round column by column, each error compensated by the columns still to come.

Frantar et al. 2022, algorithm 1, with columns in order of falling diag(H) and "static groups": the
parameters of every group are fixed before, in the original order, so the order leaves no trace in the
format. Works on `numerics.Levels`, hence for every affine chain; QoQ's code bounds come with the levels.
"""

import torch
from torch import Tensor

from tessera.numerics.levels import Levels
from tessera.quantization.linalg import InverseFactor

BLOCK = 64
"""Columns whose errors reach the rest in one matrix product; changes speed only."""


def activation_order(hessian: Tensor) -> Tensor:
    """Columns by falling diag(H), int64 [K]; equal ones keep their order."""
    return torch.argsort(hessian.diagonal(), descending=True, stable=True)


def gptq_codes(weight: Tensor, levels: Levels, factor: InverseFactor, order: Tensor) -> Tensor:
    """Codes float32 [N, K] for `weight` float32 [N, K].

    `levels` broadcast against the weight; `order` int64 [K] is the order of columns, and `factor` that of the
    Hessian in that order (`hessian[order][:, order]`). Rows do not affect each other.
    """
    columns = len(order)
    rest = weight.T[order].contiguous()
    step, offset, low, high = (
        x.expand_as(weight).T[order].contiguous()
        for x in (levels.step, levels.offset, levels.low, levels.high)
    )
    inverse = step.reciprocal()
    upper = factor.upper
    codes = torch.empty_like(rest)
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        errors = torch.empty_like(rest[start:stop])
        for i in range(start, stop):
            column = rest[i]
            code = ((column - offset[i]) * inverse[i]).round_().clamp_(low[i], high[i])
            codes[i] = code
            error = (column - (code * step[i] + offset[i])) / upper[i, i]
            errors[i - start] = error
            rest[i + 1 : stop].addr_(upper[i, i + 1 : stop], error, alpha=-1)
        rest[stop:].addmm_(upper[start:stop, stop:].T, errors, alpha=-1)
    restored = torch.empty_like(codes)
    restored[order] = codes
    return restored.T.contiguous()
