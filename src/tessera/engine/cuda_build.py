"""A model on disk to an engine on the current CUDA device: memory planned, weights loaded, graphs made."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from tessera.engine.block_pool import BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.cuda_allocation import allocating
from tessera.engine.cuda_load import DeviceWeights
from tessera.engine.cuda_memory import MemoryPlan, held_bytes, page_bytes, plan_memory
from tessera.engine.cuda_runner import CudaRunner, graph_sizes
from tessera.engine.dummy import DummyCheckpoint, DummyTokenizer, open_dummy
from tessera.engine.info import EngineInfo, float32_sizes
from tessera.engine.opening import open_verified
from tessera.engine.overlap import OverlappedCore
from tessera.engine.scheduler import Scheduler
from tessera.engine.timing import timed
from tessera.formats.base import Checkpoint, weight_of
from tessera.formats.tokenizer import Tokenizer
from tessera.kernels.cuda import device, target
from tessera.kernels.errors import NoKernelError
from tessera.kernels.ops import (
    ATTENTION,
    EMBEDDING,
    LINEAR,
    NORM,
    QUANTIZE_ROWS,
    SILU_MUL,
    EmbeddingProblem,
    LinearProblem,
    RowsProblem,
)
from tessera.layers.paged import attention_problem
from tessera.layers.target import Target
from tessera.layers.types import EMBEDDING_NAME, HEAD_NAME
from tessera.models.loader import HIDDEN_DTYPES, build_model
from tessera.models.types import Model
from tessera.numerics.qtensor import FLOAT_DTYPES
from tessera.spec import Chain, LinearSpec, Recipe

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where weights come from; `nbytes` of them on the device."""

    checkpoint: Checkpoint | DummyCheckpoint
    tokenizer: Tokenizer | DummyTokenizer
    nbytes: int


def build_cuda_core(model: str | Path, config: EngineConfig) -> OverlappedCore:
    """Opens `model`, or makes one of its shape where `load_format` is dummy.

    Logs the memory plan, the rate of loading, the seconds of each phase and everything that had to be
    reduced. Raises, before anything is read, what `device.require` raises; then what opening and building
    raise, EngineConfigError, DeviceMemoryError, CacheMemoryError, and what `allocating` raises.
    """
    device.require()
    dtype = FLOAT_DTYPES.get(config.dtype, HIDDEN_DTYPES["cuda"])
    seconds: dict[str, float] = {}
    with timed("open checkpoint", seconds):
        source = _open(model, config, dtype)
    check_kernels(source.checkpoint, dtype, config.kv_chain)
    plan = _plan(config, source)
    with timed("load weights", seconds), allocating("weights", source.nbytes):
        checkpoint = source.checkpoint
        weights = checkpoint if isinstance(checkpoint, DummyCheckpoint) else DeviceWeights(checkpoint, dtype)
    with timed("bind kernels", seconds), allocating("fused weights", source.nbytes):
        built = build_model(weights, "cuda", dtype, kv=config.kv_chain)
        del weights
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what fused weights were made of
    with timed("allocate cache", seconds), allocating("the KV cache", plan.cache_bytes):
        runner = CudaRunner(
            built,
            plan.cache.num_blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=plan.cache.max_model_len,
        )
    with allocating("workspace and graphs", plan.uses["step workspace"] + plan.uses["graphs"]):
        seconds |= runner.warm_up()
    for note in plan.cache.notes:
        log.warning("%s", note)
    scheduler = Scheduler(
        BlockPool(plan.cache.num_blocks),
        plan.cache.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.prefix_caching,
    )
    eos_ids = sorted({*source.tokenizer.eos_ids, *built.config.eos_ids})
    info = _info(model, built, plan, seconds)
    return OverlappedCore(config, scheduler, runner, source.tokenizer, eos_ids, info)


def check_kernels(
    checkpoint: Checkpoint | DummyCheckpoint, dtype: torch.dtype, kv: Chain | None = None
) -> None:
    """Refuses a cache (`kv`, or the checkpoint's own), heads, widths or formats that no kernel serves before
    anything is loaded.

    Raises NoKernelError.
    """
    config, on = checkpoint.config, Target(target.device(), dtype)
    ATTENTION.select(attention_problem(on, config, kv or checkpoint.kv_chain))
    NORM.select(RowsProblem(on.device, config.hidden_size, dtype, quantize=False))
    SILU_MUL.select(RowsProblem(on.device, config.intermediate_size, dtype, quantize=False))
    vocab, hidden = config.vocab_size, config.hidden_size
    table = checkpoint.tile(f"{EMBEDDING_NAME}.weight").chain
    EMBEDDING.select(EmbeddingProblem(on.device, vocab, hidden, table, dtype))
    first: dict[LinearSpec, str] = {}
    for name, (n, k) in {**config.linears(), HEAD_NAME: (vocab, hidden)}.items():
        weight = checkpoint.tile(weight_of(name, config)).chain
        if not weight.is_plain:  # floats become `dtype`
            spec = LinearSpec(n, k, weight, checkpoint.activation(name), on.float_type)
            first.setdefault(spec, name)
    for spec, name in first.items():
        try:
            LINEAR.select(LinearProblem(on.device, spec))
            if not spec.activation.is_plain:
                QUANTIZE_ROWS.select(RowsProblem(on.device, spec.in_features, dtype, quantize=True))
        except NoKernelError as error:
            raise NoKernelError(f"{name}: {error}") from error


def _open(model: str | Path, config: EngineConfig, dtype: torch.dtype) -> _Source:
    checkpoint: Checkpoint | DummyCheckpoint
    tokenizer: Tokenizer | DummyTokenizer
    if config.load_format == "dummy":
        recipe = Recipe.parse(config.recipe) if config.recipe else None
        checkpoint, tokenizer = open_dummy(model, "cuda", dtype, recipe), DummyTokenizer()
    else:
        checkpoint = open_verified(model)
        tokenizer = checkpoint.tokenizer()
    nbytes = sum(held_bytes(checkpoint.tile(name)) for name in checkpoint.names())
    return _Source(checkpoint, tokenizer, nbytes)


def _plan(config: EngineConfig, source: _Source) -> MemoryPlan:
    free, _ = torch.cuda.mem_get_info()
    graphs = len(graph_sizes(config.max_num_seqs))
    plan = plan_memory(config, source.checkpoint.config, source.nbytes, free, graphs)
    log.info("memory plan:\n%s", plan.table())
    return plan


def _info(model: str | Path, built: Model, plan: MemoryPlan, seconds: dict[str, float]) -> EngineInfo:
    return EngineInfo(
        model=str(model),
        device="cuda",
        kernel_ids=built.kernel_ids(),
        weight_bytes=built.weight_bytes,
        cache_bytes=plan.cache_bytes,
        cache_bytes_per_block=page_bytes(built.config),
        startup_seconds=seconds,
        notes=plan.cache.notes,
        **float32_sizes(built.config),
    )
