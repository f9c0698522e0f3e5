"""The one description of every quantized format. Standard library only.

A quantized tensor is a `Qtile`: a shape and a `Chain` of steps from stored codes to values, each step's
parameters shared as its `Pattern` says. `LinearSpec` says what a linear layer computes with Qtiles, and
`Recipe` names the combination a user asked for.
"""

from tessera.spec.chain import Chain, Param, Step, param, plain
from tessera.spec.errors import AlgebraError, GroupSizeError, RecipeError, SpecError
from tessera.spec.grid import BF16, E4M3, E5M2, F16, F32, S8, S8N, U4, U8, DType, Float, Grid, parse_dtype
from tessera.spec.linear import (
    A8,
    A16,
    A32,
    LinearSpec,
    Transform,
    affine_min,
    affine_zero,
    group_of,
    progressive,
    symmetric,
)
from tessera.spec.model import ModelConfig, RopeConfig
from tessera.spec.pattern import WHOLE, Pattern
from tessera.spec.qtile import Qtile, concat, promote
from tessera.spec.recipe import ALGORITHMS, GROUPS, KV_BITS, PER_CHANNEL, Recipe, kv_chain

__all__ = [
    "A8", "A16", "A32", "ALGORITHMS", "BF16", "E4M3", "E5M2", "F16", "F32", "GROUPS", "KV_BITS",
    "PER_CHANNEL", "S8", "S8N", "U4", "U8", "WHOLE", "AlgebraError", "Chain", "DType", "Float", "Grid",
    "GroupSizeError", "LinearSpec", "ModelConfig", "Param", "Pattern", "Qtile", "Recipe", "RecipeError",
    "RopeConfig", "SpecError", "Step", "Transform", "affine_min", "affine_zero", "concat", "group_of",
    "kv_chain", "param", "parse_dtype", "plain", "progressive", "promote", "symmetric",
]  # fmt: skip
