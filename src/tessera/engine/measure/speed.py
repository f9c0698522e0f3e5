"""A measured value, and how times are taken on the host."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tessera.numerics.qtensor import QTensor
from tessera.numerics.rounding import quantize
from tessera.spec import Chain


@dataclass(frozen=True, slots=True)
class Speed:
    """`value` in SI `unit`; `how` says by what it was measured.

    key is bandwidth, copy_bandwidth, peaks.<type>, kernel_seconds (as `hardware.Measured` has them) or
    launch_seconds.
    """

    key: str
    value: float
    unit: str
    how: str


def best_s(calls: Sequence[Callable[[], object]], rounds: int = 9) -> float:
    """Seconds of one of `calls`, over the best of some rounds of all: what else runs here only ever adds."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for call in calls:
            call()
        times.append((time.perf_counter() - start) / len(calls))
    return min(times[1:])


def random_weights(rows: int, columns: int, chain: Chain) -> QTensor:
    """A matrix of normal values as `chain` stores it; the same each time."""
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return quantize(values, chain)
