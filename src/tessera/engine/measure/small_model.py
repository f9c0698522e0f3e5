"""A small random model on an engine, whose decode step tells what a kernel costs beside its bytes."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import torch

from tessera.engine.block_pool import BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.core import EngineCore
from tessera.engine.dummy import DummyCheckpoint, DummyTokenizer
from tessera.engine.measure.speed import Speed
from tessera.engine.runner import ModelRunner
from tessera.engine.scheduler import Scheduler
from tessera.engine.throughput import Case, measure
from tessera.hardware import Device
from tessera.models.loader import HIDDEN_DTYPES, build_model
from tessera.planner import ModelShape, StepModel, precision_of
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
LEAST: Final = 0.2
"""Share of a step that is its kernels' at least: weights that a cache holds are read faster than memory."""

RECIPES: Final = {"cpu": "w4a8kv4-g64-rtn", "gpu": "bf16"}
"""What each kind of device serves the small model as."""


def kernel_seconds(
    kind: Literal["cpu", "gpu"], bandwidth: float, peaks: Mapping[str, float], config: ModelConfig = SMALL
) -> Speed:
    """What a kernel costs: what the planner's step leaves of the measured one, at the speeds given."""
    seconds = decode_seconds(kind, config)
    device = Device(kind, memory=0.0, bandwidth=bandwidth, peaks=peaks, kind=kind, measured=True)
    model = StepModel(ModelShape.from_config(config), device, precision_of(RECIPES[kind]))
    planned = model.decode("predicted", CASE.batch, CASE.prompt + CASE.output / 2).value
    how = (
        f"decode step of {config.num_layers} layers of {config.hidden_size}: {1e6 * seconds:.0f} us, of "
        f"which {1e6 * planned:.0f} bytes and products; {model.kernels} kernels"
    )
    return Speed("kernel_seconds", max(seconds - planned, LEAST * seconds) / model.kernels, "s", how)


def decode_seconds(kind: Literal["cpu", "gpu"], config: ModelConfig = SMALL, repeats: int = 5) -> float:
    """The best decode step at a batch of one, scheduling and sampling included."""
    core = _core(config, kind)
    return min(measure(core, CASE, repeats=1).tpot_ms for _ in range(repeats)) / 1e3


def _core(config: ModelConfig, kind: Literal["cpu", "gpu"]) -> EngineCore:
    place = "cuda" if kind == "gpu" else "cpu"
    recipe = None if kind == "gpu" else Recipe.parse(RECIPES[kind])
    dtype: torch.dtype = HIDDEN_DTYPES[place]
    model = build_model(DummyCheckpoint(config, place, dtype, recipe), place, dtype)
    limits: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 128}
    scheduler = Scheduler(BlockPool(BLOCKS), 128, 1, 64, prefix_caching=False)
    options = EngineConfig(max_num_seqs=1, max_num_batched_tokens=64)
    if kind == "cpu":
        return EngineCore(options, scheduler, ModelRunner(model, BLOCKS, **limits), DummyTokenizer(), [])
    from tessera.engine.cuda_runner import CudaRunner  # needs a device's libraries
    from tessera.engine.overlap import OverlappedCore

    runner = CudaRunner(model, BLOCKS, **limits)
    runner.warm_up()
    return OverlappedCore(options, scheduler, runner, DummyTokenizer(), [])
