"""Models known by name. Sizes are those of the models' published config.json."""

from types import MappingProxyType
from typing import Final

from tessera.planner.model_shape import ModelShape

REFERENCE_7B: Final = ModelShape(
    "reference-7b", 4096, 11008, 32, 32, 32, 128, 32000, 131072, uniform_parameters=6_740_000_000
)
"""The lecture's model (seed 004): 6.74e9 parameters, all alike; 32 layers, hidden size 4096, 32 heads of 128.

Its longest context is not stated there (exercise 3 takes 32,768 tokens); nothing below 131,072 is refused.
"""

_SHAPES: Final = (
    REFERENCE_7B,
    ModelShape("llama-2-7b", 4096, 11008, 32, 32, 32, 128, 32000, 4096),
    ModelShape("llama-2-13b", 5120, 13824, 40, 40, 40, 128, 32000, 4096),
    ModelShape("llama-2-70b", 8192, 28672, 80, 64, 8, 128, 32000, 4096),
    ModelShape("llama-3-8b", 4096, 14336, 32, 32, 8, 128, 128256, 8192),
    ModelShape("llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072),
    ModelShape("llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, tied=True),
    ModelShape("llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, 131072, tied=True),
    ModelShape("llama-3-70b", 8192, 28672, 80, 64, 8, 128, 128256, 8192),
    ModelShape("llama-3.3-70b", 8192, 28672, 80, 64, 8, 128, 128256, 131072),
    ModelShape("llama-3.1-405b", 16384, 53248, 126, 128, 8, 128, 128256, 131072),
    ModelShape("mistral-7b", 4096, 14336, 32, 32, 8, 128, 32768, 32768),
    ModelShape("qwen2.5-7b", 3584, 18944, 28, 28, 4, 128, 152064, 131072, qkv_bias=True),
    ModelShape("qwen2.5-14b", 5120, 13824, 48, 40, 8, 128, 152064, 131072, qkv_bias=True),
    ModelShape("qwen2.5-32b", 5120, 27648, 64, 40, 8, 128, 152064, 131072, qkv_bias=True),
    ModelShape("qwen2.5-72b", 8192, 29568, 80, 64, 8, 128, 152064, 131072, qkv_bias=True),
    ModelShape("qwen3-8b", 4096, 12288, 36, 32, 8, 128, 151936, 40960, qk_norm=True),
    ModelShape("qwen3-14b", 5120, 17408, 40, 40, 8, 128, 151936, 40960, qk_norm=True),
    ModelShape("qwen3-32b", 5120, 25600, 64, 64, 8, 128, 151936, 40960, qk_norm=True),
    ModelShape("mixtral-8x7b", 4096, 14336, 32, 32, 8, 128, 32000, 32768, experts=8, experts_per_token=2),
    ModelShape("mixtral-8x22b", 6144, 16384, 56, 48, 8, 128, 32768, 65536, experts=8, experts_per_token=2),
    ModelShape("smollm2-135m", 576, 1536, 30, 9, 3, 64, 49152, 8192, tied=True),
)

MODELS: Final = MappingProxyType({shape.name: shape for shape in _SHAPES})
