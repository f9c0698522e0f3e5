"""Rotary tables of a model, computed once and shared by its layers."""

from functools import lru_cache

from torch import Tensor

from tessera.numerics import rope
from tessera.spec import ModelConfig, RopeConfig


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [max_position, D / 2]. Do not write to them: every caller holds the same two."""
    return _tables(config.rope, config.head_dim, config.max_position)


@lru_cache(maxsize=4)
def _tables(config: RopeConfig, head_dim: int, max_position: int) -> tuple[Tensor, Tensor]:
    return rope.rope_tables(config, head_dim, max_position)
