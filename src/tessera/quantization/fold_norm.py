"""Norm weights into the linear layers behind them: RMSNorm then only normalizes.

The final norm is left alone: its layer is the head, and where that is tied to the embedding, folding would
change the embedding.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from tessera.quantization.block import STAGES, FloatBlock

NORMS: Final = {"input_layernorm.weight": "qkv", "post_attention_layernorm.weight": "gate_up"}


def fold_norm(block: FloatBlock, seen: Mapping[str, Tensor]) -> FloatBlock:
    """W diag(gamma) in every layer that reads the norm, and gamma = 1. Keeps the block's function."""
    changes = {}
    for norm, stage in NORMS.items():
        gamma = block.tensors[norm]
        changes[norm] = torch.ones_like(gamma)
        for layer in STAGES[stage]:
            changes[f"{layer}.weight"] = block.tensors[f"{layer}.weight"] * gamma
    return block.changed(changes)
