"""A model on disk to an engine that can step."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tessera.engine.block_pool import BLOCK_SIZE, BlockPool
from tessera.engine.config import EngineConfig, plan_cache
from tessera.engine.core import EngineCore
from tessera.engine.info import EngineInfo
from tessera.engine.memory import available_memory
from tessera.engine.runner import ModelRunner
from tessera.engine.scheduler import Scheduler
from tessera.formats import open_checkpoint
from tessera.models.loader import build_model

log = logging.getLogger(__name__)


def build_core(model: str | Path, config: EngineConfig | None = None, device: str = "cpu") -> EngineCore:
    """Open `model` (directory, GGUF file or hub id), bind its kernels, plan and allocate the KV cache.

    Logs the seconds of each phase and everything that had to be reduced. Raises what opening and building
    raise, EngineConfigError, and CacheMemoryError if not even one sequence fits.
    """
    config = config or EngineConfig()
    seconds: dict[str, float] = {}
    with _timed("open checkpoint", seconds):
        checkpoint = open_checkpoint(str(model))
        tokenizer = checkpoint.tokenizer()
    with _timed("build model", seconds):
        built = build_model(checkpoint, device)
    with _timed("allocate cache", seconds):
        plan = plan_cache(
            config,
            model_max_len=built.config.max_position,
            bytes_per_block=built.cache_bytes_per_page,
            available_bytes=_available(device),
        )
        runner = ModelRunner(
            built,
            plan.num_blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
            device=device,
        )
    for note in plan.notes:
        log.warning("%s", note)
    info = EngineInfo(
        model=str(model),
        device=device,
        kernel_ids=built.kernel_ids(),
        weight_bytes=built.weight_bytes,
        cache_bytes=plan.num_blocks * built.cache_bytes_per_page,
        cache_bytes_per_block=built.cache_bytes_per_page,
        float32_weight_bytes=4 * sum(math.prod(shape) for shape in built.config.tensor_shapes().values()),
        float32_cache_bytes_per_block=4 * 2 * BLOCK_SIZE * built.config.num_layers * built.config.kv_size,
        startup_seconds=seconds,
        notes=plan.notes,
    )
    scheduler = Scheduler(
        BlockPool(plan.num_blocks), plan.max_model_len, config.max_num_seqs, config.max_num_batched_tokens
    )
    eos_ids = {*tokenizer.eos_ids, *built.config.eos_ids}
    return EngineCore(config, scheduler, runner, tokenizer, sorted(eos_ids), info)


@contextmanager
def _timed(phase: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - start
    log.info("%s: %.2f s", phase, seconds[phase])


def _available(device: str) -> int:
    if device == "cpu":
        return available_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return free
