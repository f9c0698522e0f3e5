"""Llama: RMSNorm, rotary attention with grouped KV heads, SiLU-gated MLP (Touvron et al. 2023)."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from tessera.kernels.types import AttentionMetadata
from tessera.layers.reference import FloatWeights, ReferenceLayers
from tessera.layers.types import Layer, Layers, Observer, observe
from tessera.spec import ModelConfig


class LlamaBlock:
    """One decoder block. `hidden` is what the last block added; `residual` is the sum before it."""

    def __init__(self, layers: Layers, index: int) -> None:
        name = f"model.layers.{index}"
        attn, mlp = f"{name}.self_attn", f"{name}.mlp"
        self.qkv = layers.linear(f"{attn}.q_proj", f"{attn}.k_proj", f"{attn}.v_proj")
        self.o = layers.linear(f"{attn}.o_proj")
        self.gate_up = layers.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj")
        self.down = layers.linear(f"{mlp}.down_proj")
        self.attention = layers.attention()
        self.silu_mul = layers.silu_mul(feeds=self.down)
        self.input_norm = layers.norm(f"{name}.input_layernorm", feeds=self.qkv)
        self.post_norm = layers.norm(f"{name}.post_attention_layernorm", feeds=self.gate_up)

    @classmethod
    def from_floats(cls, config: ModelConfig, layer_index: int, tensors: Mapping[str, Tensor]) -> Self:
        """Block `layer_index` in plain torch with dense attention, for calibration.

        `tensors` maps canonical names (`model.layers.<i>.self_attn.q_proj.weight`, …) to floats; others in
        it are left alone. It computes in float32. Raises KeyError for a missing tensor.
        """
        return cls(ReferenceLayers(FloatWeights(config, tensors)), layer_index)

    def forward(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        meta: AttentionMetadata,
        cache: Tensor | None = None,
        observer: Observer | None = None,
    ) -> tuple[Tensor, Tensor]:
        """hidden [T, H], residual [T, H] (None before the first block) -> both after this block.

        The block's output in the usual sense is their sum. `meta` of whole sequences comes from
        `layers.dense.dense_metadata(lengths)`; `cache` is this layer's pages, None where attention is dense.
        `observer(point, tensor)` sees the linear inputs "qkv_in", "o_in", "gate_up_in", "down_in" [T, K] and,
        as [T, heads, D], "q" and "k" after rotation, "k_pre" before it, and "v".
        """
        x, residual = self.input_norm(hidden, residual)
        observe(observer, "qkv_in", x)
        x = self.attention(self.qkv(x), cache, meta, observer)
        observe(observer, "o_in", x)
        x, residual = self.post_norm(self.o(x), residual)
        observe(observer, "gate_up_in", x)
        x = self.silu_mul(self.gate_up(x))
        observe(observer, "down_in", x)
        return self.down(x), residual

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer, in the order they run."""
        return (
            self.input_norm, self.qkv, self.attention, self.o,
            self.post_norm, self.gate_up, self.silu_mul, self.down,
        )  # fmt: skip


class Llama:
    """Token ids to logits over paged caches, or densely where `layers` are the reference."""

    def __init__(self, layers: Layers) -> None:
        self.config = layers.config
        self.embedding = layers.embedding()
        self.blocks = [LlamaBlock(layers, index) for index in range(self.config.num_layers)]
        self.norm = layers.norm("model.norm")
        self.head = layers.head()

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, meta: AttentionMetadata, caches: Sequence[Tensor] | None = None
    ) -> Tensor:
        """token_ids int [T] -> hidden [T, H] after the last norm. `caches` as `allocate_caches` made them,
        None for the dense reference.
        """
        hidden = self.embedding(token_ids)
        residual = None
        for index, block in enumerate(self.blocks):
            hidden, residual = block.forward(hidden, residual, meta, caches[index] if caches else None)
        rows, _ = self.norm(hidden, residual)
        assert isinstance(rows, Tensor), "a norm that feeds nothing gives floats"
        return rows

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of `forward`'s output [T, H] -> float32 [T, vocab]."""
        return self.head(hidden).float()

    def allocate_caches(self, num_pages: int) -> list[Tensor]:
        """One cache of `num_pages` pages of 64 tokens for each block."""
        return [block.attention.allocate(num_pages) for block in self.blocks]

    @property
    def cache_bytes_per_page(self) -> int:
        """Bytes of one page over all blocks."""
        return sum(block.attention.bytes_per_page for block in self.blocks)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and their parameters as held in memory; a tied table counts once."""
        return sum(layer.nbytes for layer in self._layers()) - (
            min(self.head.nbytes, self.embedding.nbytes) if self.config.tied_embeddings else 0
        )

    def kernel_ids(self) -> tuple[str, ...]:
        """Ids of the kernels bound, each once, in the order they first run."""
        return tuple(dict.fromkeys(i for layer in self._layers() for i in layer.kernel_ids))

    def _layers(self) -> list[Layer]:
        blocks = [layer for block in self.blocks for layer in block.layers]
        return [self.embedding, *blocks, self.norm, self.head]
