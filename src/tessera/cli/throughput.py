"""The rows of `tessera bench throughput`: our engine and, where asked for, peers on the same cases."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tessera.cli import peers
from tessera.cli.results import Row
from tessera.engine.block_pool import BLOCK_SIZE, blocks_for
from tessera.engine.config import EngineConfig
from tessera.engine.info import EngineInfo
from tessera.engine.throughput import Case, Speed, measure
from tessera.errors import InvalidRequestError

if TYPE_CHECKING:
    from tessera.engine.core import EngineCore

PACKAGES = ("tessera-llm", "torch", "numpy", "transformers", "llama-cpp-python")


@dataclass(frozen=True, slots=True)
class Peers:
    """gguf: file for llama.cpp; reference: model for transformers in float32; None leaves the peer out."""

    gguf: Path | None = None
    reference: str | None = None


def parse_case(text: str) -> Case:
    """`8x512x128` is batch 8, prompts of 512 tokens, 128 new ones. Raises InvalidRequestError."""
    try:
        batch, prompt, output = (int(part) for part in text.split("x"))
    except ValueError as error:
        raise InvalidRequestError(
            f"case {text!r} is not BATCHxPROMPTxOUTPUT, such as 8x512x128", "case"
        ) from error
    if min(batch, prompt, output) < 1:
        raise InvalidRequestError(f"case {text!r}: batch, prompt and output must be at least 1", "case")
    return Case(batch, prompt, output)


def rows(
    model: str,
    cases: Sequence[Case],
    compared: Peers,
    *,
    threads: int,
    repeats: int,
    device: str = "cpu",
    dtype: str = "auto",
) -> Iterator[Row]:
    """One row for each system and case, as they are measured. Systems run one after another."""
    core = _core(model, cases, threads, device, dtype)
    vocab_size = core.runner.vocab_size
    for case in cases:
        yield _row("tessera", model, threads, case, measure(core, case, repeats)) | _memory(core.info, case)
    del core
    context = max(case.prompt + case.output for case in cases)
    if compared.gguf is not None:
        for name, q4_kv in (("llama.cpp", False), ("llama.cpp kv q4_0", True)):
            run = peers.llama_cpp(compared.gguf, context, threads, q4_kv)
            for case in cases:
                speed = peers.measure_peer(run, case, vocab_size, repeats)
                yield _row(name, str(compared.gguf), threads, case, speed)
    if compared.reference is not None:
        from tessera.formats import open_checkpoint

        run = peers.transformers_float32(open_checkpoint(compared.reference), threads)
        for case in cases:
            speed = peers.measure_peer(run, case, vocab_size, repeats)
            yield _row("transformers fp32", compared.reference, threads, case, speed)


def _core(model: str, cases: Sequence[Case], threads: int, device: str, dtype: str) -> "EngineCore":
    """An engine with room for every case."""
    from tessera.engine.build import build_core

    config = EngineConfig.on(
        device,
        max_model_len=max(case.prompt + case.output for case in cases),
        max_num_seqs=max(case.batch for case in cases),
        threads=threads if device == "cpu" else None,  # on a device only peers have any
        dtype=dtype,
    )
    return build_core(model, config, device)


def _row(
    system: str, model: str, threads: int, case: Case, speed: Speed
) -> dict[str, str | int | float | None]:
    name = Path(model).name
    return {"system": system, "model": name, "threads": threads, **asdict(case), **asdict(speed)}


def _memory(info: EngineInfo, case: Case) -> dict[str, str | int | float | None]:
    """Bytes of the weights, and of the cache blocks that the case fills, beside those of float32.

    `rss_bytes` is everything the process holds: interpreter and libraries, and whatever else it loaded.
    """
    blocks = case.batch * blocks_for(case.prompt + case.output - 1)
    held = info.weight_bytes + blocks * info.cache_bytes_per_block
    plain = info.float32_weight_bytes + blocks * info.float32_cache_bytes_per_block
    return {
        "weight_bytes": info.weight_bytes,
        "cache_bytes": blocks * info.cache_bytes_per_block,
        "cache_bytes_per_token": info.cache_bytes_per_block / BLOCK_SIZE,
        "float32_bytes": plain,
        "fraction_of_float32": held / plain,
        "rss_bytes": psutil.Process().memory_info().rss,
        "kernels": " ".join(info.kernel_ids),
    }
