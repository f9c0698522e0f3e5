"""What a layer's inputs look like: the Hessian of its output error."""

from typing import Final

import torch
from torch import Tensor

from tessera.quantization.chunks import row_chunks
from tessera.quantization.errors import HessianError

CHUNK: Final = 4096
"""Rows per matrix product, so that a product's temporaries stay small."""


def second_moment(inputs: Tensor, layer: str) -> Tensor:
    """H = X^T X / T, float32 [K, K], of float32 inputs X [T, K].

    ||X (W - Q)^T||^2 / T = tr((W - Q) H (W - Q)^T), so errors of any weights follow from it. Raises
    HessianError naming `layer` where the inputs have NaN or Inf.
    """
    width = inputs.shape[1]
    total = torch.zeros(width, width)
    for chunk in row_chunks(inputs, CHUNK):
        total.addmm_(chunk.T, chunk)
    total /= max(1, len(inputs))
    if not torch.isfinite(total.diagonal()).all():
        bad = int((~torch.isfinite(inputs)).any(dim=1).sum())
        raise HessianError(
            f"inputs of {layer} are NaN or infinite for {bad} of {len(inputs)} calibration tokens: its own "
            "weights or an earlier layer overflow; run `tessera eval MODEL` on the unquantized model"
        )
    return total


def output_error(error: Tensor, hessian: Tensor) -> float:
    """Mean squared output error per token of a weight error [N, K]: tr(D H D^T)."""
    return float(((error @ hessian) * error).sum())
