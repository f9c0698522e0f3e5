"""A decoder block as the passes see it, and a walk through it that stops before its linear layers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.types import Activation, AttentionMetadata
from tessera.layers.reference import FloatWeights, ReferenceLayers
from tessera.layers.types import LinearLayer
from tessera.models.llama import LlamaBlock
from tessera.numerics import QTensor, dequantize_rows, plain, quantize_rows
from tessera.quantization.chunks import row_chunks
from tessera.spec import A32, Chain, ModelConfig, Recipe

STAGES: Final = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Linear layers that share an input, by the attribute of LlamaBlock that runs them, in order."""

Seen = Mapping[str, Tensor]
"""What a block's observer saw on a sample: "qkv_in", "q", "k", … (`LlamaBlock.forward`)."""

Found = dict[str, float]
"""What a pass chose and what it expects of it, for the report."""

ROWS: Final = 2048
"""Tokens per call of a row-wise layer, which bounds the memory of what lies between two layers."""


@dataclass(frozen=True, slots=True)
class FloatBlock:
    """float32 tensors of one block by their names inside it, such as `self_attn.q_proj.weight`."""

    config: ModelConfig
    index: int
    tensors: Mapping[str, Tensor]

    @property
    def prefix(self) -> str:
        return f"model.layers.{self.index}."

    def changed(self, changes: Mapping[str, Tensor]) -> "FloatBlock":
        """A copy with some tensors replaced."""
        return FloatBlock(self.config, self.index, {**self.tensors, **changes})

    def canonical(self) -> dict[str, Tensor]:
        return {self.prefix + name: tensor for name, tensor in self.tensors.items()}

    def runnable(self) -> LlamaBlock:
        """The block in float32 with dense attention; nothing is rounded."""
        return LlamaBlock(ReferenceLayers(FloatWeights(self.config, self.canonical())), self.index)


@dataclass(slots=True)
class RoundedBlock:
    """The same block on its way to being quantized, as `layers.types.Weights`: the KV cache is rounded as the
    recipe says from the start, weights once they are in `rounded` (canonical names).

    Inputs of linear layers are left to `walk`, which rounds each once for all layers that share it.
    """

    source: FloatBlock
    recipe: Recipe
    rounded: dict[str, QTensor] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.source.config

    @property
    def kv_chain(self) -> Chain:
        return A32 if self.recipe.kv_bits == 16 else self.recipe.kv_chain()

    def names(self) -> list[str]:
        return list(self.source.canonical())

    def qtensor(self, name: str) -> QTensor:
        return self.rounded[name] if name in self.rounded else plain(self.source.canonical()[name])

    def tensor(self, name: str) -> Tensor:
        return self.qtensor(name).dequantize()

    def activation(self, name: str) -> Chain:
        return A32

    def enter(self, x: Tensor) -> Tensor:
        """Inputs [T, K] as the linear layers get them."""
        return x if self.recipe.activation_bits == 16 else dequantize_rows(quantize_rows(x))

    def linear(self, stage: str) -> LinearLayer:
        """The layers of a stage with the weights there are now."""
        return ReferenceLayers(self).linear(*(self.source.prefix + name for name in STAGES[stage]))

    def runnable(self) -> LlamaBlock:
        return LlamaBlock(ReferenceLayers(self), self.source.index)


def walk(
    block: LlamaBlock, hidden: Tensor, meta: AttentionMetadata, enter: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Run `block` on the residual stream `hidden` float32 [T, H].

    Yields (stage, its input [T, K] after `enter`) before the stage's layers run, so that they can be
    replaced, and at the end ("", the residual stream after the block).
    """
    yield "qkv", (x := _rows(lambda rows: enter(_floats(block.input_norm(rows, None)[0])), hidden))
    x = block.attention(_rows(block.qkv, x), None, meta)
    yield "o", (x := _rows(enter, x))
    hidden = hidden + _rows(block.o, x)
    yield "gate_up", (x := _rows(lambda rows: enter(_floats(block.post_norm(rows, None)[0])), hidden))
    yield "down", (x := _rows(lambda rows: enter(_floats(block.silu_mul(block.gate_up(rows)))), x))
    yield "", hidden + _rows(block.down, x)


def _rows(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([layer(rows) for rows in row_chunks(x, ROWS)])


def _floats(x: Activation) -> Tensor:
    assert isinstance(x, Tensor), "reference layers compute in floats"
    return x
