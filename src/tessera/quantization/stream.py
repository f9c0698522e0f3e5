"""Block by block: read, transform, round, hand on. Resident are one block, its statistics and the activations
of the calibration tokens, whatever the model's size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.formats.base import Checkpoint
from tessera.kernels.types import AttentionMetadata
from tessera.layers.dense import dense_metadata
from tessera.numerics import QTensor, quantize_rows
from tessera.numerics.activation import dequantize_rows
from tessera.quantization.block import STAGES, FloatBlock, RoundedBlock, walk
from tessera.quantization.passes import PASSES, Sample
from tessera.quantization.report import Module
from tessera.quantization.rounding import ROUNDINGS, relative_error, round_nearest, weight_error
from tessera.quantization.stats import second_moment
from tessera.spec import Recipe


@dataclass(frozen=True, slots=True)
class Tokens:
    """The residual stream of the calibration tokens: hidden float32 [T, H], sequences one after the other."""

    hidden: Tensor
    meta: AttentionMetadata
    length: int

    @classmethod
    def embed(cls, table: QTensor, windows: Tensor) -> "Tokens":
        """What the embedding gives for `windows` int64 [samples, length]."""
        hidden = table.take_rows(windows.flatten()).dequantize()
        return cls(hidden, dense_metadata([windows.shape[1]] * len(windows)), windows.shape[1])
