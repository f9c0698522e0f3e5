"""Rounding to nearest for any chain: the baseline every other rounding is compared with."""

import torch
from torch import Tensor

from tessera.numerics.blocks import reduce_blocks, spread
from tessera.numerics.errors import NoEncoderError
from tessera.numerics.fit import fit, store, store_scale
from tessera.numerics.levels import encode
from tessera.numerics.qtensor import QTensor, code_dtype, plain
from tessera.spec import Chain, Qtile


def quantize(x: Tensor, chain: Chain, table: Tensor | None = None) -> QTensor:
    """`x` (floats, any shape the chain's patterns fit) rounded to the nearest value of each block's grid.

    Parameters are rounded to their storage types first and codes chosen for the rounded ones, so decoding is
    exact. `table` gives the levels of a chain with a lookup step (float [2^bits], ascending), such as NF4's.
    A chain without steps casts. Raises NoEncoderError, ScaleRangeError (NaN, Inf, or too large for a scale's
    storage type).
    """
    if chain.is_plain:
        return plain(x.to(code_dtype(chain.codes)), chain)
    if chain.steps[0].op == "lookup":
        return _quantize_lookup(x, chain, table)
    params = fit(x, chain)
    return QTensor(Qtile(tuple(x.shape), chain), encode(x, chain, params), params)


def _quantize_lookup(x: Tensor, chain: Chain, table: Tensor | None) -> QTensor:
    """Nearest entry of the table after a block's largest magnitude is scaled to the table's (NF4: Dettmers
    et al. 2023, section 3). Without a scale step values are looked up as they are.
    """
    lookup, *rest = chain.steps
    if table is None or [s.op for s in rest] not in ([], ["scale"]):
        raise NoEncoderError(f"{chain}: a lookup chain needs `table`, and at most one scale step after it")
    levels = store(table, lookup.params[0])
    params = {lookup.params[0].name: levels}
    x = x.float()
    for step in rest:
        largest = reduce_blocks(x.abs(), step.pattern, torch.amax)
        scale = store_scale(largest / levels.dequantize().abs().max(), step.params[0])
        params[step.params[0].name] = scale
        x = x / spread(scale.dequantize(), step.pattern, x.shape)
    entries = levels.dequantize()
    codes = torch.bucketize(x, (entries[1:] + entries[:-1]) / 2).to(code_dtype(chain.codes))
    return QTensor(Qtile(tuple(x.shape), chain), codes, params)
