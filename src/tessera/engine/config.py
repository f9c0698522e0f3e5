"""Engine options, and how much KV cache they amount to on this machine."""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from tessera.engine.block_pool import BLOCK_SIZE, blocks_for
from tessera.engine.errors import CacheMemoryError, EngineConfigError
from tessera.spec import KV_BITS, Chain, Recipe, kv_chain

MIN_MODEL_LEN: Final = 4  # the self-check's prompt and its tokens

LOAD_FORMATS: Final = ("auto", "dummy")
DTYPES: Final = ("auto", "f16", "bf16")
CUDA_DEFAULTS: Final[dict[str, Any]] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "memory_fraction": 0.9,
}
"""What differs from the defaults below on a device that has nothing else to do."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of one engine. The defaults are those of a CPU that others use too; `on` knows a device's.

    max_model_len           longest prompt and output together, in tokens; None: what the model allows,
                            or less where the cache cannot hold that
    max_num_seqs            most requests computed in one step
    max_num_batched_tokens  most tokens computed in one step; longer prompts are cut into chunks
    kv_tokens               size of the KV cache in tokens; None: what `memory_fraction` gives
    kv_bits                 bits of K and V in the cache, 4 or 16, whatever the checkpoint was quantized for
                            (its weights serve with either); None: as the checkpoint says
    memory_fraction         share of the memory available after loading that the KV cache may take
    prefix_caching          find the beginnings of prompts in the cache instead of computing them again
    seed                    makes requests without a seed of their own repeatable; None: fresh entropy
    load_format             auto: weights from the checkpoint; dummy: random ones of the shape that
                            config.json gives, made on the device (CUDA only)
    recipe                  what the weights that load_format dummy makes are quantized to, such as w4a8-g128;
                            None: they are floats
    dtype                   16-bit type of weights, hidden states and cache: f16 or bf16 (CUDA only); auto is
                            bf16 there, and float32 between the layers on the CPU
    threads                 CPU threads of kernels; None: one per core this process may use

    Raises EngineConfigError, RecipeError.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    kv_tokens: int | None = None
    kv_bits: int | None = None
    memory_fraction: float = 0.5
    prefix_caching: bool = True
    seed: int | None = None
    threads: int | None = None
    load_format: str = "auto"
    recipe: str | None = None
    dtype: str = "auto"

    @classmethod
    def on(cls, device: str, **options: Any) -> Self:
        """Options for `device`: what is left out or None is its default.

        Of most sequences and most tokens the one that is left out makes room for the other.
        """
        base = cls(**CUDA_DEFAULTS) if device == "cuda" else cls()
        given = {name: value for name, value in options.items() if value is not None}
        if "max_num_seqs" not in given:
            tokens = given.get("max_num_batched_tokens", base.max_num_batched_tokens)
            given["max_num_seqs"] = max(1, min(base.max_num_seqs, tokens))
        elif "max_num_batched_tokens" not in given:
            given["max_num_batched_tokens"] = max(base.max_num_batched_tokens, given["max_num_seqs"])
        return replace(base, **given)

    def __post_init__(self) -> None:
        minima = {
            "max_model_len": MIN_MODEL_LEN,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 1,
            "kv_tokens": MIN_MODEL_LEN,
            "threads": 1,
        }
        for name, least in minima.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise EngineConfigError(f"{name} is {value}: it must be at least {least}")
        for name, choices in (("load_format", LOAD_FORMATS), ("dtype", DTYPES)):
            if (choice := getattr(self, name)) not in choices:
                raise EngineConfigError(f"{name} is {choice!r}: one of {', '.join(choices)}")
        if self.kv_bits is not None and (type(self.kv_bits) is not int or self.kv_bits not in KV_BITS):
            raise EngineConfigError(f"kv_bits is {self.kv_bits!r}: one of {', '.join(map(str, KV_BITS))}")
        if self.recipe is not None:
            Recipe.parse(self.recipe)
            if self.load_format != "dummy":
                raise EngineConfigError(
                    f"recipe is {self.recipe!r}: it is for load_format dummy; a checkpoint has the one that "
                    "`tessera quantize` gave it"
                )
        if not 0 < self.memory_fraction <= 1:
            raise EngineConfigError(
                f"memory_fraction is {self.memory_fraction}: it must be above 0 and at most 1"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise EngineConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, max_num_seqs {self.max_num_seqs}: "
                "a step must have room for one token of every sequence"
            )
        if self.kv_tokens and blocks_for(self.kv_tokens) < blocks_for(self.max_model_len or 1):
            raise EngineConfigError(
                f"kv_tokens is {self.kv_tokens}, max_model_len {self.max_model_len}: the cache must hold one "
                "sequence"
            )

    @property
    def kv_chain(self) -> Chain | None:
        """Format of the cache; None: the checkpoint's own."""
        return None if self.kv_bits is None else kv_chain(self.kv_bits)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Blocks to allocate, the context they allow, and what had to be reduced (one sentence each)."""

    num_blocks: int
    max_model_len: int
    notes: tuple[str, ...] = ()


def plan_cache(
    config: EngineConfig, *, model_max_len: int, bytes_per_block: int, available_bytes: int
) -> CachePlan:
    """KV cache for `config`, given the model's longest context and the memory left after loading it.

    What was not asked for by name is reduced to fit, and noted. Raises CacheMemoryError if not even one
    sequence of the `max_model_len` asked for fits, EngineConfigError if the model's context is shorter.
    """
    if config.max_model_len is not None and config.max_model_len > model_max_len:
        raise EngineConfigError(
            f"max_model_len is {config.max_model_len}: the model was made for at most {model_max_len}"
        )
    wanted_len = config.max_model_len or model_max_len
    budget = int(available_bytes * config.memory_fraction)
    affordable = budget // bytes_per_block
    if config.kv_tokens is None:
        wanted = config.max_num_seqs * blocks_for(wanted_len)  # more could never be in use at once
    else:
        wanted = blocks_for(config.kv_tokens)
    num_blocks = min(wanted, affordable)
    capacity = num_blocks * BLOCK_SIZE
    if capacity < (config.max_model_len or MIN_MODEL_LEN):
        raise CacheMemoryError(_arithmetic(bytes_per_block, available_bytes, config, capacity))
    notes = []
    if config.kv_tokens is not None and affordable < wanted:
        notes.append(
            f"kv_tokens reduced from {config.kv_tokens} to {capacity}: {config.memory_fraction:.0%} of "
            f"{_mib(available_bytes)} available holds no more"
        )
    if capacity < wanted_len:
        notes.append(f"max_model_len reduced from {wanted_len} to {capacity}: the KV cache holds no more")
    return CachePlan(num_blocks, min(wanted_len, capacity), tuple(notes))


def _arithmetic(bytes_per_block: int, available_bytes: int, config: EngineConfig, capacity: int) -> str:
    length = config.max_model_len or MIN_MODEL_LEN
    blocks = blocks_for(length)
    needed = blocks * bytes_per_block
    fixes = []
    if needed <= available_bytes:
        enough = math.ceil(1000 * needed / available_bytes) / 1000
        fixes.append(f"raise memory_fraction to {enough:g}")
    if capacity >= MIN_MODEL_LEN:
        fixes.append(f"set max_model_len to at most {capacity}")
    return (
        f"one sequence of {length} tokens needs {blocks} blocks x {bytes_per_block} bytes = {_mib(needed)}; "
        f"the cache may take {config.memory_fraction:.0%} of {_mib(available_bytes)} available = "
        f"{_mib(int(available_bytes * config.memory_fraction))}, which holds {capacity} tokens; "
        f"{', or '.join(fixes) or 'free memory, or take a smaller model'}"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
