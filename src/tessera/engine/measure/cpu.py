"""Speeds of this machine's processor, with the kernels that serve on it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch.nn.functional import linear

from tessera.engine.measure.small_model import kernel_seconds
from tessera.engine.measure.speed import Speed, best_s, random_weights
from tessera.engine.memory import available_memory
from tessera.kernels.cpu import device
from tessera.layers.linear import Linear, LinearWeights
from tessera.layers.target import Target
from tessera.spec import Recipe

COLD_BYTES: Final = 256 * 2**20
"""Weights are rotated through copies of this size together, so that no cache holds them."""
RECIPES: Final = ("w4a8-g128", "w8a8-chn")
ROWS, COLUMNS = 8192, 4096
TOKENS: Final = 256


def speeds() -> Iterator[Speed]:
    """Every speed, as it is measured, on as many threads as kernels use."""
    cold = min(COLD_BYTES, available_memory() // 8)
    read, copy = _memory(cold)
    bandwidth = max(read, *(_stream(recipe, cold) for recipe in RECIPES), key=lambda speed: speed.value)
    yield bandwidth
    yield copy
    peaks: dict[str, float] = {}
    for peak in (_int8_peak(), *_float_peaks()):
        peaks[peak.key.removeprefix("peaks.")] = peak.value
        yield peak
    yield kernel_seconds("cpu", bandwidth.value, peaks)


def _memory(size: int) -> tuple[Speed, Speed]:
    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    read = size / best_s([source.sum])
    copy = 2 * size / best_s([partial(target.copy_, source)])
    megabytes = size // 2**20
    return (
        Speed("bandwidth", read, "B/s", f"sum of {megabytes} MiB"),
        Speed("copy_bandwidth", copy, "B/s", f"copy of {megabytes} MiB, read and write counted"),
    )


def _layer(recipe: str, rows: int) -> tuple[LinearWeights, Target]:
    parsed = Recipe.parse(recipe)
    weights = LinearWeights(
        random_weights(rows, COLUMNS, parsed.weight_chain()), None, parsed.activation_chain()
    )
    return weights, Target(device(), torch.float32)


def _stream(recipe: str, cold: int) -> Speed:
    """Bytes/s of weights that the products of one token read."""
    stored, target = _layer(recipe, ROWS)
    first = Linear(target, stored)
    layers = [first, *(Linear(target, _another(stored)) for _ in range(cold // first.nbytes))]
    x = torch.randn(1, COLUMNS)
    seconds = best_s([partial(layer, x) for layer in layers])
    return Speed("bandwidth", first.nbytes / seconds, "B/s", f"{first.kernel_ids[0]}, one token")


def _another(stored: LinearWeights) -> LinearWeights:
    """The same in memory of its own: what is packed once is shared by all that have the same codes."""
    return replace(stored, weight=replace(stored.weight, codes=stored.weight.codes.clone()))


def _int8_peak() -> Speed:
    """Operations/s of products of many tokens, by the faster of the weight formats."""
    found = []
    for recipe in RECIPES:
        stored, target = _layer(recipe, ROWS // 4)
        layer = Linear(target, stored)
        seconds = best_s([partial(layer, torch.randn(TOKENS, COLUMNS))])
        rate = 2 * TOKENS * (ROWS // 4) * COLUMNS / seconds
        found.append(Speed("peaks.int8", rate, "op/s", layer.kernel_ids[0]))
    return max(found, key=lambda speed: speed.value)


def _float_peaks() -> Iterator[Speed]:
    """16-bit formats are computed in float32 too."""
    stored, target = _layer("w4a16-g128", ROWS // 4)
    layer = Linear(target, stored)
    x, plain = torch.randn(TOKENS, COLUMNS), stored.weight.dequantize().float()
    calls = {layer.kernel_ids[0]: partial(layer, x), "torch": partial(linear, x, plain)}
    times = {name: best_s([call]) for name, call in calls.items()}
    how, seconds = min(times.items(), key=lambda item: item[1])
    rate = 2 * TOKENS * (ROWS // 4) * COLUMNS / seconds
    yield Speed("peaks.fp32", rate, "op/s", how)
    yield Speed("peaks.fp16", rate, "op/s", f"{how}, computed in float32")
