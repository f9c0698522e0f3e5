"""N:M structured sparsity, alone and stacked on int4 (seed 004, section 15.8)."""

from math import ceil, comb, log2

from tessera.planner.errors import PlanError
from tessera.planner.quantity import Quantity, quantity
from tessera.planner.roofline import Number


def kept_ratio(n: int, m: int, bits: float = 16) -> Quantity:
    """Bytes of N:M-sparse weights over dense ones: n survivors of m, each with an index of log2(m) bits.

    Beside it stands one index for the whole pattern, the least that says which n of m survive.
    """
    if not 0 < n < m:
        raise PlanError(f"{n}:{m} sparsity keeps {n} of {m}: N must lie between 0 and M")
    index, pattern = ceil(log2(m)), ceil(log2(comb(m, n)))
    ratio = quantity(
        "sparse_ratio", "", "(n * bits + n * index) / (m * bits)", n=n, m=m, bits=bits, index=index
    )
    return ratio.beside(one_pattern_index=(n * bits + pattern) / (m * bits))


def sparse_bytes(dense: Number, ratio: Number) -> Quantity:
    """Bytes after the ratio is applied to all of them (for int4: the lecture's convention)."""
    return quantity("sparse_bytes", "B", "dense * ratio", dense=dense, ratio=ratio)


def sparse_int4_bytes(parameters: Number, dense: Number, n: int = 2, m: int = 4) -> Quantity:
    """Bytes of an N:M-sparse int4 layout as it has to be stored: codes of survivors, their indices, and the
    group parameters of the dense layout, which sparsity does not shrink."""
    ratio = kept_ratio(n, m, 4)
    return quantity(
        "sparse_int4_bytes",
        "B",
        "parameters / 2 * ratio + (dense - parameters / 2)",
        parameters=parameters,
        ratio=ratio,
        dense=dense,
    )


def sparse_gain(ratio: Number) -> Quantity:
    """The most that fewer bytes can speed up a step bound by them."""
    return quantity("sparse_gain", "x", "1 / ratio", ratio=ratio)
