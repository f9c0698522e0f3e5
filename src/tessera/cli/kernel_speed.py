"""The rows of `tessera bench kernels`: linear layers of a recipe on the CPU, beside torch in float32."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from tessera.cli.results import Row
from tessera.errors import InvalidRequestError
from tessera.kernels.cpu import device
from tessera.layers.linear import Linear, LinearWeights
from tessera.layers.target import Target
from tessera.numerics.rounding import quantize
from tessera.spec import Recipe

COLD_BYTES: Final = 64 * 2**20
"""Weights are rotated through copies of this size together, or they would be read from a cache."""
SECONDS: Final = 0.3
MIN_CALLS: Final = 10


def parse_shape(text: str) -> tuple[int, int]:
    """`3072x576` is a weight of 3072 outputs and 576 inputs. Raises InvalidRequestError."""
    try:
        n, k = (int(part) for part in text.split("x"))
    except ValueError as error:
        raise InvalidRequestError(f"shape {text!r} is not OUTxIN, such as 3072x576", "shape") from error
    if min(n, k) < 1:
        raise InvalidRequestError(f"shape {text!r}: both sizes must be at least 1", "shape")
    return n, k


def rows(recipe: Recipe, shapes: Sequence[tuple[int, int]], tokens: Sequence[int]) -> Iterator[Row]:
    """One row for each weight shape [N, K] and number of tokens M, as they are measured.

    Times are medians, in microseconds, activation quantization included. gbps: weight bytes over time;
    gops: 2 M N K over time.
    """
    generator = torch.Generator().manual_seed(0)
    for n, k in shapes:
        values = torch.randn(n, k, generator=generator)
        layers = _copies(recipe, values)
        plain = [values.clone() for _ in range(_count(4 * n * k))]
        for m in tokens:
            x = torch.randn(m, k, generator=generator)
            us = _median_us([partial(layer, x) for layer in layers])
            torch_us = _median_us([partial(linear, x, weight) for weight in plain])
            yield {
                "system": "tessera",
                "op": "linear",
                "recipe": str(recipe),
                "m": m,
                "n": n,
                "k": k,
                "us": us,
                "gbps": layers[0].nbytes / us / 1e3,
                "gops": 2 * m * n * k / us / 1e3,
                "torch_fp32_us": torch_us,
                "speedup": torch_us / us,
                "kernels": " ".join(layers[0].kernel_ids),
            }


def _copies(recipe: Recipe, values: Tensor) -> list[Linear]:
    """The same layer bound several times, each to its own packed weights."""
    weight = quantize(values, recipe.weight_chain())
    stored = LinearWeights(weight, None, recipe.activation_chain())
    target = Target(device(), torch.float32)
    first = Linear(target, stored)
    return [first, *(Linear(target, _another(stored)) for _ in range(_count(first.nbytes) - 1))]


def _another(stored: LinearWeights) -> LinearWeights:
    """The same in memory of its own: what is packed once is shared by all that have the same codes."""
    return replace(stored, weight=replace(stored.weight, codes=stored.weight.codes.clone()))


def _count(nbytes: int) -> int:
    return max(1, math.ceil(COLD_BYTES / nbytes))


def _median_us(calls: Sequence[Callable[[], object]]) -> float:
    """Median time of a call; one round does not count."""
    for call in calls:
        call()
    times: list[float] = []
    deadline = time.perf_counter() + SECONDS
    for call in cycle(calls):
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        times.append(end - start)
        if end > deadline and len(times) >= MIN_CALLS:
            break
    return statistics.median(times) * 1e6
