"""A model on disk to an engine that can step."""

import logging
from pathlib import Path

import torch

from tessera.engine.block_pool import BlockPool
from tessera.engine.config import EngineConfig, plan_cache
from tessera.engine.core import EngineCore
from tessera.engine.errors import EngineConfigError
from tessera.engine.info import EngineInfo, float32_sizes
from tessera.engine.memory import available_memory
from tessera.engine.opening import open_verified
from tessera.engine.runner import ModelRunner
from tessera.engine.scheduler import Scheduler
from tessera.engine.timing import timed
from tessera.kernels import cpu
from tessera.kernels.cpu.library import Library, load
from tessera.models.errors import UnknownDeviceError
from tessera.models.loader import HIDDEN_DTYPES, build_model
from tessera.numerics.threads import serial

log = logging.getLogger(__name__)


def build_core(model: str | Path, config: EngineConfig | None = None, device: str = "cpu") -> EngineCore:
    """Open `model` (directory, GGUF file or hub id), bind its kernels, plan and allocate the KV cache.

    Logs the seconds of each phase and everything that had to be reduced. Raises UnknownDeviceError, what
    opening and building raise, EngineConfigError, and CacheMemoryError if not even one sequence fits.
    """
    config = config or EngineConfig.on(device)
    if device not in HIDDEN_DTYPES:
        raise UnknownDeviceError(f"no kernels for device {device!r}; known are {', '.join(HIDDEN_DTYPES)}")
    if device == "cuda":
        if config.threads is not None:
            raise EngineConfigError(f"threads is {config.threads}: it is for kernels on the CPU")
        from tessera.engine.cuda_build import build_cuda_core  # needs a device's libraries

        return build_cuda_core(model, config)
    for name in ("load_format", "dtype"):
        if (choice := getattr(config, name)) != "auto":
            raise EngineConfigError(f"{name} {choice} needs a CUDA device, not {device}")
    if config.threads is not None:
        _use_threads(config.threads)
    seconds: dict[str, float] = {}
    with timed("open checkpoint", seconds):
        checkpoint = open_verified(model)
        tokenizer = checkpoint.tokenizer()
    largest = max(rows * columns for rows, columns in checkpoint.config.block_linears().values())
    with timed("build model", seconds), serial(largest):
        built = build_model(checkpoint, device, kv=config.kv_chain)
    with timed("allocate cache", seconds):
        plan = plan_cache(
            config,
            model_max_len=built.config.max_position,
            bytes_per_block=built.cache_bytes_per_page,
            available_bytes=available_memory(),
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
        startup_seconds=seconds,
        notes=plan.notes,
        **float32_sizes(built.config),
    )
    scheduler = Scheduler(
        BlockPool(plan.num_blocks),
        plan.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.prefix_caching,
    )
    eos_ids = {*tokenizer.eos_ids, *built.config.eos_ids}
    return EngineCore(config, scheduler, runner, tokenizer, sorted(eos_ids), info)


def _use_threads(count: int) -> None:
    """CPU threads of torch and of the compiled kernels, for the whole process."""
    torch.set_num_threads(count)
    library = load(cpu.device().arch)
    if isinstance(library, Library):
        library.set_threads(count)
