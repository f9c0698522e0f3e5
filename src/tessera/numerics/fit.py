"""Parameters of a chain from the range of each block, rounded to their storage type before any encoding."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from tessera.numerics.blocks import reduce_blocks
from tessera.numerics.errors import NoEncoderError, ScaleRangeError
from tessera.numerics.progressive import PROTECTIVE_RANGE, group_params, to_level_1
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor, code_dtype, plain
from tessera.spec import Chain, Float, Grid, Param

Params = dict[str, QTensor]


def fit(x: Tensor, chain: Chain, shrink: Tensor | float = 1.0) -> Params:
    """Parameters of `chain` for floats `x`, from each block's smallest and largest value.

    `shrink` multiplies the ranges of the first step's blocks (a number, or one per block): values outside are
    clipped. Raises NoEncoderError for a chain without a rule, ScaleRangeError where a parameter is not finite
    in its storage type.
    """
    ops = tuple(step.op for step in chain.steps)
    if ops not in _FITTERS:
        raise NoEncoderError(f"no rule finds parameters of {chain}; rules exist for {sorted(_FITTERS)}")
    x = x.float()
    pattern = chain.steps[0].pattern
    low = reduce_blocks(x, pattern, torch.amin) * shrink
    high = reduce_blocks(x, pattern, torch.amax) * shrink
    params = _FITTERS[ops](x, chain, low, high)
    for name, value in params.items():
        if not torch.isfinite(value.dequantize()).all():
            raise ScaleRangeError(
                f"{name} of {chain} is not finite: the data spans [{float(x.min())}, {float(x.max())}], with "
                f"{int((~torch.isfinite(x)).sum())} NaN or Inf"
            )
    return params


def store(values: Tensor, param: Param) -> QTensor:
    """`values` rounded to the parameter's storage type."""
    return plain(values.to(code_dtype(param.chain.codes)), param.chain)


def store_scale(values: Tensor, param: Param) -> QTensor:
    """A scale rounded to storage, never 0: a block of zeros gets 1, one that underflows the smallest step."""
    dtype = code_dtype(param.chain.codes)
    stored = values.to(dtype)
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    guard = torch.where(values == 0, 1.0, values.sign() * tiny).to(dtype)
    return plain(torch.where(stored == 0, guard, stored), param.chain)


def _fit_scale(x: Tensor, chain: Chain, low: Tensor, high: Tensor) -> Params:
    """Symmetric. A grid with one more negative code (-8..7) puts the value of largest magnitude on it, with a
    negative scale if need be (the rule of GGUF's Q4_0): 16 levels serve better than 15.
    """
    (param,) = chain.steps[0].params
    codes = _codes(chain)
    if -codes.low == codes.high + 1:
        scale = torch.where(-low >= high, low, high) / codes.low
    else:
        scale = torch.maximum(-low, high) / codes.high
    return {param.name: store_scale(scale, param)}


def _fit_affine_zero(x: Tensor, chain: Chain, low: Tensor, high: Tensor) -> Params:
    """The range is extended to hold 0, which the integer zero point represents exactly."""
    scale, zero = chain.steps[0].params
    codes = _codes(chain)
    low, high = low.clamp(max=0), high.clamp(min=0)
    stored = store_scale((high - low) / (codes.high - codes.low), scale)
    point = (codes.low - low / stored.dequantize()).round().clamp(codes.low, codes.high)
    return {scale.name: stored, zero.name: store(point, zero)}


def _fit_affine_min(x: Tensor, chain: Chain, low: Tensor, high: Tensor) -> Params:
    """A block without spread keeps its value in the minimum, with the smallest positive scale."""
    scale, minimum = chain.steps[0].params
    dtype = FLOAT_DTYPES[str(scale.chain.codes)]
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    codes = _codes(chain)
    step = ((high - low) / (codes.high - codes.low)).clamp(min=tiny)
    stored = store(step, scale)
    return {scale.name: stored, minimum.name: store(low - codes.low * stored.dequantize(), minimum)}


def _fit_progressive(x: Tensor, chain: Chain, low: Tensor, high: Tensor) -> Params:
    groups, rows = chain.steps
    group_scale, group_zero = groups.params
    (scale,) = rows.params
    level_1 = store_scale(reduce_blocks(x.abs(), rows.pattern, torch.amax) / PROTECTIVE_RANGE, scale)
    row_scale = level_1.dequantize()
    s, z = group_params(to_level_1(low, row_scale), to_level_1(high, row_scale))
    return {
        scale.name: level_1,
        group_scale.name: store(s, group_scale),
        group_zero.name: store(z, group_zero),
    }


def _codes(chain: Chain) -> Grid:
    if isinstance(chain.codes, Float):
        raise NoEncoderError(f"{chain} has float codes: only integer grids are encoded")
    return chain.codes


_FITTERS: Final[dict[tuple[str, ...], Callable[[Tensor, Chain, Tensor, Tensor], Params]]] = {
    ("scale",): _fit_scale,
    ("affine_zero",): _fit_affine_zero,
    ("affine_min",): _fit_affine_min,
    ("affine_zero", "scale"): _fit_progressive,
}
