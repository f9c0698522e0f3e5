"""What an engine is made of, for logs, health pages and benchmark tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.engine.memory import block_bytes
from tessera.planner import ModelShape
from tessera.spec import A32, ModelConfig


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """kernel_ids: kernels bound, each once. Sizes in bytes. startup_seconds: of each phase, in order.

    The float32 sizes are what the same model and one block of the same cache would take unquantized.
    notes: what had to be reduced to fit, one sentence each.
    """

    model: str = ""
    device: str = "cpu"
    kernel_ids: tuple[str, ...] = ()
    weight_bytes: int = 0
    cache_bytes: int = 0
    cache_bytes_per_block: int = 0
    float32_weight_bytes: int = 0
    float32_cache_bytes_per_block: int = 0
    startup_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def float32_sizes(config: ModelConfig) -> dict[str, int]:
    """What weights and a block of the cache would take in float32, as fields of EngineInfo."""
    return {
        "float32_weight_bytes": 4 * ModelShape.from_config(config).parameters,
        "float32_cache_bytes_per_block": block_bytes(config, A32),
    }
