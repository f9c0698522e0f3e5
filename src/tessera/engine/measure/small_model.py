"""A small random model on an engine, whose decode step tells what a kernel costs beside its bytes."""

from dataclasses import dataclass
from typing import Any, Final

import torch

from tessera.engine.block_pool import BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.core import EngineCore
from tessera.engine.dummy import DummyCheckpoint, DummyTokenizer
from tessera.engine.measure.speed import Speed
from tessera.engine.runner import ModelRunner
from tessera.engine.scheduler import Scheduler
from tessera.engine.throughput import Case, measure
from tessera.models.loader import HIDDEN_DTYPES, build_model
from tessera.planner.step import KERNELS_PER_LAYER, KERNELS_PER_STEP
from tessera.spec import ModelConfig, Recipe

SMALL: Final = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=40960,
    hidden_size=640,
    intermediate_size=1792,
    num_layers=28,
    num_heads=10,
    num_kv_heads=2,
    head_dim=64,
    max_position=512,
    tied_embeddings=True,
)
"""Layers as small models have them, where fixed costs count most, and more bytes than most caches hold."""
CASE: Final = Case(batch=1, prompt=32, output=64)
BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class SmallStep:
    """Seconds of a decode step of `config`, and bytes of its matrices."""

    config: ModelConfig
    seconds: float
    weight_bytes: int

    def kernel(self, bandwidth: float) -> Speed:
        """What is left of the step, by kernel, when its weights are read at `bandwidth`."""
        reading = self.weight_bytes / bandwidth
        layers, width = self.config.num_layers, self.config.hidden_size
        count = KERNELS_PER_LAYER * layers + KERNELS_PER_STEP
        how = (
            f"decode step of {layers} layers of {width}: {1e6 * self.seconds:.0f} us, of which "
            f"{1e6 * reading:.0f} reading weights; {count} kernels"
        )
        # Weights that a cache holds are read faster than that: something is left all the same.
        left = max(self.seconds - reading, 0.2 * self.seconds)
        return Speed("kernel_seconds", left / count, "s", how)


def small_step(
    kind: str, recipe: str | None = None, config: ModelConfig = SMALL, repeats: int = 5
) -> SmallStep:
    """The best decode step on device `kind` at a batch of one, scheduling and sampling included."""
    dtype = HIDDEN_DTYPES[kind]
    checkpoint = DummyCheckpoint(config, kind, dtype, Recipe.parse(recipe) if recipe else None)
    core = _core(checkpoint, kind, dtype)
    seconds = min(measure(core, CASE, repeats=1).tpot_ms for _ in range(repeats)) / 1e3
    tiles = [checkpoint.tile(name) for name in checkpoint.names()]
    return SmallStep(config, seconds, sum(tile.bytes for tile in tiles if len(tile.shape) == 2))


def _core(checkpoint: DummyCheckpoint, kind: str, dtype: torch.dtype) -> EngineCore:
    model = build_model(checkpoint, kind, dtype)
    limits: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 128}
    scheduler = Scheduler(BlockPool(BLOCKS), 128, 1, 64, prefix_caching=False)
    config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=64)
    if kind == "cpu":
        return EngineCore(config, scheduler, ModelRunner(model, BLOCKS, **limits), DummyTokenizer(), [])
    from tessera.engine.cuda_runner import CudaRunner  # needs a device's libraries
    from tessera.engine.overlap import OverlappedCore

    runner = CudaRunner(model, BLOCKS, **limits)
    runner.warm_up()
    return OverlappedCore(config, scheduler, runner, DummyTokenizer(), [])
