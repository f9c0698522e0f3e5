"""Block by block: read, transform, round, hand on. Resident are one block, its statistics and the activations
of the calibration tokens, whatever the model's size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.formats.base import Checkpoint, check_finite
from tessera.kernels.types import AttentionMetadata
from tessera.layers.dense import dense_metadata
from tessera.numerics import QTensor, fit, plain
from tessera.quantization.block import STAGES, FloatBlock, Found, RoundedBlock, walk
from tessera.quantization.passes import Sample, transform
from tessera.quantization.report import Module, stored_as
from tessera.quantization.rounding import (
    ROUNDINGS,
    Inputs,
    naming,
    relative_error,
    round_nearest,
    weight_error,
)
from tessera.quantization.stats import second_moment
from tessera.spec import Recipe

SAMPLE_TOKENS = 4096
"""Calibration tokens that passes look at (whole sequences, at least one)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The residual stream of the calibration tokens: hidden float32 [T, H], sequences one after the other."""

    hidden: Tensor
    meta: AttentionMetadata
    length: int

    @classmethod
    def embed(cls, table: QTensor, windows: Tensor) -> "Tokens":
        """What the embedding gives for `windows` int64 [samples, length]."""
        samples, length = windows.shape
        hidden = table.take_rows(windows.flatten()).dequantize()
        return cls(hidden, dense_metadata([length] * samples), length)

    def sample(self) -> Sample:
        count = max(1, min(SAMPLE_TOKENS, len(self.hidden)) // self.length)
        return Sample(self.hidden[: count * self.length], dense_metadata([self.length] * count))

    def moved(self, hidden: Tensor) -> "Tokens":
        """The same tokens further up the model."""
        return Tokens(hidden, self.meta, self.length)


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor for the output, with its row in the report."""

    name: str
    data: QTensor
    row: Module


def written(name: str, data: QTensor, **measured: Any) -> Written:
    """`measured` are fields of `Module`."""
    return Written(name, data, stored_as(name, data.tile, **measured))


def read_block(source: Checkpoint, index: int) -> FloatBlock:
    """Block `index` in float32. Raises NonFiniteError naming a tensor with NaN or Inf."""
    prefix = f"model.layers.{index}."
    names = [name for name in source.names() if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): read_floats(source, name) for name in names}
    return FloatBlock(source.config, index, tensors)


def read_floats(source: Checkpoint, name: str) -> Tensor:
    """A tensor in float32. Raises NonFiniteError naming it where it has NaN or Inf."""
    values = source.tensor(name).float()
    check_finite(str(source.path), name, values)
    return values


@dataclass(frozen=True, slots=True)
class QuantizedBlock:
    """A block's tensors as the recipe stores them, what the passes found, and the tokens after the block."""

    tensors: list[Written]
    found: dict[str, Found]
    tokens: Tokens


@torch.inference_mode()
def quantize_block(block: FloatBlock, recipe: Recipe, tokens: Tokens, check: bool) -> QuantizedBlock:
    """Transform, then round layer after layer.

    Layers are rounded in the order they run, each on inputs that come from those already rounded, with int8
    activations and KV4 where the recipe has them: what the layer will meet when it serves.
    """
    _check_weights(block, recipe)
    block, found = transform(block, recipe, tokens.sample(), check)
    state = RoundedBlock(block, recipe)
    running = state.runnable()
    tensors: list[Written] = []
    for stage, x in walk(running, tokens.hidden, tokens.meta, state.enter):
        if not stage:
            tokens = tokens.moved(x)
            continue
        for item in round_stage(state, stage, x):
            state.rounded[item.name] = item.data
            tensors.append(item)
        setattr(running, stage, state.linear(stage))
    floats = {name: t for name, t in block.canonical().items() if name not in state.rounded}
    tensors += [written(name, plain(tensor)) for name, tensor in floats.items()]
    return QuantizedBlock(tensors, found, tokens)


def _check_weights(block: FloatBlock, recipe: Recipe) -> None:
    """Every weight can be stored, before passes try candidates on it. Raises WeightError naming one."""
    for layer in (name for names in STAGES.values() for name in names):
        with naming(f"{block.prefix}{layer}.weight"):
            fit(block.tensors[f"{layer}.weight"], recipe.weight_chain())


def round_stage(state: RoundedBlock, stage: str, x: Tensor) -> Iterator[Written]:
    """Every layer of a stage on its common input `x` float32 [T, K], as the layers get it."""
    recipe, prefix = state.recipe, state.source.prefix
    inputs = Inputs.of(second_moment(x, prefix + STAGES[stage][0]))
    chain = recipe.weight_chain()
    for layer in STAGES[stage]:
        weight, name = state.source.tensors[f"{layer}.weight"], f"{prefix}{layer}.weight"
        with naming(name):
            chosen = ROUNDINGS[recipe.algorithm](weight, inputs, chain)
            nearest = round_nearest(weight, inputs, chain)
        yield written(
            name,
            chosen.weight,
            rounding=chosen.how,
            weight_error=weight_error(weight, chosen.weight),
            nearest_error=relative_error(weight, nearest.weight, inputs.hessian),
            error=relative_error(weight, chosen.weight, inputs.hessian),
            damp=chosen.damp,
            note=chosen.note,
        )
