"""Device memory planned before anything is loaded, as a table whose rows add up."""

import math
from dataclasses import dataclass
from typing import Final

from tessera.engine.block_pool import BLOCK_SIZE, blocks_for
from tessera.engine.config import MIN_MODEL_LEN, CachePlan, EngineConfig, plan_cache
from tessera.engine.errors import CacheMemoryError, DeviceMemoryError
from tessera.engine.memory import block_bytes
from tessera.kernels.cuda.gemm import half_weights
from tessera.kernels.cuda.gemm.weights import layout_of, packed_bytes
from tessera.spec import A16, Chain, ModelConfig, Qtile

RESERVE_BYTES: Final = 768 * 2**20
"""cuBLAS workspaces, kernels' code, split attention results, and what the allocator cannot use."""

GRAPH_BYTES: Final = 4 * 2**20
"""Driver memory of one captured graph, apart from the pool that all share."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each use, in order, and the KV cache that follows. `free` is what the device had."""

    free: int
    uses: dict[str, int]
    cache: CachePlan
    cache_bytes: int

    def table(self) -> str:
        """One line a use, in GiB and as a share of the free memory."""
        rows = {**self.uses, "KV cache": self.cache_bytes}
        rows["left over"] = self.free - sum(rows.values())
        lines = [f"{name:<20} {size / 2**30:9.2f} GiB {size / self.free:7.1%}" for name, size in rows.items()]
        return "\n".join([*lines, f"{'free at start':<20} {self.free / 2**30:9.2f} GiB"])


def page_bytes(config: ModelConfig, kv: Chain = A16) -> int:
    """One block of the cache over all layers, K and V stored by `kv`."""
    return block_bytes(config, kv)


def held_bytes(tile: Qtile) -> int:
    """Bytes of a tensor on the device: plain floats are held in 16 bits, codes packed for kernels, in
    the larger layout where those of W4A8 and W4A16 hold the same codes.
    """
    if tile.chain.is_plain:
        return math.prod(tile.shape) * 2
    layouts = [packed_bytes(tile)] if layout_of(tile.chain) else []
    if not half_weights.takes(tile.chain):
        layouts.append(half_weights.packed_bytes(tile))
    return max(layouts, default=tile.bytes)


def step_bytes(config: ModelConfig, tokens: int, rows: int) -> int:
    """Most that one step of `tokens` tokens and `rows` rows of logits holds at once."""
    mlp = 3 * config.intermediate_size + 2 * config.hidden_size
    attention = 3 * config.q_size + 2 * config.kv_size + 2 * config.hidden_size
    return tokens * max(mlp, attention) * 2 + rows * config.vocab_size * (2 + 4)


def plan_memory(
    options: EngineConfig, config: ModelConfig, weight_bytes: int, free: int, num_graphs: int
) -> MemoryPlan:
    """Where `free` bytes go. Raises DeviceMemoryError where weights and workspace alone do not fit,
    CacheMemoryError where not even one sequence does; both with the arithmetic and what would help.
    """
    seqs, tokens = options.max_num_seqs, options.max_num_batched_tokens
    uses = {
        "weights": weight_bytes,
        "step workspace": step_bytes(config, tokens, seqs),
        "graphs": step_bytes(config, seqs, seqs) + num_graphs * GRAPH_BYTES,
        "reserve": RESERVE_BYTES,
    }
    left = free - sum(uses.values())
    block = page_bytes(config)
    if left < block * blocks_for(options.max_model_len or MIN_MODEL_LEN):
        raise DeviceMemoryError(_arithmetic(uses, free, left, options, config))
    try:
        cache = plan_cache(
            options, model_max_len=config.max_position, bytes_per_block=block, available_bytes=left
        )
    except CacheMemoryError as error:
        taken = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in uses.items())
        raise CacheMemoryError(f"{error}. Of {free / 2**30:.2f} GiB free are taken off: {taken}") from error
    return MemoryPlan(free, uses, cache, cache.num_blocks * block)


def _arithmetic(
    uses: dict[str, int], free: int, left: int, options: EngineConfig, config: ModelConfig
) -> str:
    total = " + ".join(f"{name} {size / 2**30:.2f}" for name, size in uses.items())
    length = options.max_model_len or MIN_MODEL_LEN
    cache = page_bytes(config) * blocks_for(length)
    share = options.memory_fraction
    limit = f", of what the rest leaves the cache may take {share:.0%}" if share < 1 else ""
    saved = _savings(options, config, left)
    fixes = "; or ".join(saved[:2]) or "take a model whose weights are smaller, or a device with more memory"
    return (
        f"{total} + KV cache of one sequence of {length} tokens {cache / 2**30:.2f} GiB exceed the "
        f"{free / 2**30:.2f} GiB free by {(cache - left) / 2**30:.2f}{limit}: {fixes}"
    )


def _savings(options: EngineConfig, config: ModelConfig, left: int) -> list[str]:
    """Changes each of which would do where `left` bytes are left for the cache, the smallest first."""
    seqs, tokens, length = (
        options.max_num_seqs,
        options.max_num_batched_tokens,
        options.max_model_len or MIN_MODEL_LEN,
    )
    per_token = step_bytes(config, 1, 0)
    per_row = 2 * step_bytes(config, 0, 1) + per_token

    def cache(length: int) -> int:
        """What must be left, so that the share the cache may take holds one sequence."""
        return math.ceil(page_bytes(config) * blocks_for(length) / options.memory_fraction)

    missing = cache(length) - left
    found = []
    fewer_tokens = tokens - -(-missing // per_token)
    if fewer_tokens >= seqs:
        found.append((fewer_tokens / tokens, f"set max_num_batched_tokens to {fewer_tokens}"))
    fewer_seqs = seqs - -(-missing // per_row)
    if fewer_seqs >= 1:
        found.append((fewer_seqs / seqs, f"set max_num_seqs to {fewer_seqs}"))
    shorter = int(left * options.memory_fraction) // page_bytes(config) * BLOCK_SIZE
    if shorter > 0:
        found.append((shorter / length, f"set max_model_len to {shorter}"))
    if found:
        return [text for _, text in sorted(found, reverse=True)]
    for halvings in range(1, max(tokens, length).bit_length()):  # none alone: all of them
        s = max(1, seqs >> halvings)
        t = max(s, tokens >> halvings)
        n = min(length, max(BLOCK_SIZE, length >> halvings))
        if (seqs - s) * per_row + (tokens - t) * per_token + cache(length) - cache(n) >= missing:
            shorter_too = f", max_model_len to {n}" if n < length else ""
            return [f"set max_num_seqs to {s}, max_num_batched_tokens to {t}{shorter_too}"]
    return []
