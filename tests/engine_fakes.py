"""A model whose output depends on every token of the history as read back from its paged cache.

A wrong slot, block table, position or a block given away too early changes the history that is read, and so
the tokens. `expected_tokens` computes the same from plain lists.
"""

import codecs
from dataclasses import dataclass, field

import numpy as np
import torch

from tessera.engine.block_pool import BLOCK_SIZE, BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.core import EngineCore
from tessera.engine.runner import ModelRunner
from tessera.engine.sampler import Draw, sample
from tessera.engine.scheduler import Scheduler
from tessera.spec import ModelConfig

VOCAB = 260
EOS = 256
MODULUS = 2**24 - 3  # every hash is exact in float32


def history_hash(tokens) -> int:
    state = 7
    for token in tokens:
        state = (state * 1103515 + int(token) + 12345) % MODULUS
    return state


def logits_of(state: int) -> torch.Tensor:
    """Logits of one history: any token can win, end of sequence now and then."""
    logits = torch.from_numpy(np.random.Generator(np.random.PCG64(state)).standard_normal(VOCAB)).float()
    logits[EOS] += 1
    return logits


def expected_tokens(prompt, sampling, seed=None, eos=(EOS,), context=10**9):
    """What an engine must answer, computed from lists alone (greedy, or with the given seed)."""
    tokens = list(prompt)
    limit = min(context, len(prompt) + (sampling.max_tokens or 10**9))
    seed = sampling.seed if seed is None else seed
    while len(tokens) < limit:
        row = logits_of(history_hash(tokens))[None]
        token = sample(row, [Draw(sampling, 0 if seed is None else seed, len(tokens))])[0]
        tokens.append(token)
        if token in sampling.stop_token_ids or (token in eos and not sampling.ignore_eos):
            break
    return tokens[len(prompt) :]


@dataclass
class FakeModel:
    """Implements tessera.models.types.Model. Its cache holds token ids and positions."""

    max_position: int = 100_000
    broken_after: int | None = None  # forwards until logits become NaN
    fail_after: int | None = None  # forwards until one raises
    steps: list = field(default_factory=list)  # (tokens, sequences) of each forward
    cache_bytes_per_page: int = BLOCK_SIZE * 16
    weight_bytes: int = 4096

    @property
    def config(self) -> ModelConfig:
        return ModelConfig("FakeForCausalLM", VOCAB, 8, 8, 1, 1, 1, 8, self.max_position, eos_ids=(EOS,))

    def kernel_ids(self):
        return ("fake",)

    def allocate_caches(self, num_pages):
        return [torch.full((num_pages * BLOCK_SIZE, 2), -1)]

    def forward(self, token_ids, meta, caches=None):
        self.steps.append((len(token_ids), len(meta.context_lens)))
        if self.fail_after is not None and len(self.steps) > self.fail_after:
            raise RuntimeError("kernel exploded")
        cache = caches[0]
        cache[meta.slot_mapping, 0] = token_ids
        cache[meta.slot_mapping, 1] = meta.positions.long()
        hidden = torch.zeros(len(token_ids), 1)
        for index, context in enumerate(meta.context_lens.tolist()):
            begin, end = meta.cu_seqlens[index : index + 2].tolist()
            table = meta.block_tables[index].long()
            slots = (table[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()[:context]
            history, positions = cache[slots, 0], cache[slots, 1]
            assert positions.tolist() == list(range(context)), "a block of the history was overwritten"
            for row in range(begin, end):
                hidden[row] = history_hash(history[: int(meta.positions[row]) + 1].tolist())
        assert meta.max_context_len == int(meta.context_lens.max())
        assert meta.max_query_len == int(meta.cu_seqlens.diff().max())
        return hidden

    def logits(self, hidden):
        if self.broken_after is not None and len(self.steps) > self.broken_after:
            return torch.full((len(hidden), VOCAB), float("nan"))
        return torch.stack([logits_of(int(state)) for state in hidden[:, 0].tolist()])


class FakeTokenizer:
    """Ids below 256 are bytes; the rest are special and have no text."""

    eos_ids = (EOS,)

    def encode(self, text, add_special_tokens=False):
        return list(text.encode())

    def decode(self, ids, skip_special_tokens=True):
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def decode_stream(self):
        return FakeDecodeStream()

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"


class FakeDecodeStream:
    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id):
        return self._decoder.decode(bytes([token_id] if token_id < 256 else []))

    def flush(self):
        return self._decoder.decode(b"", final=True)


def make_core(
    model=None,
    *,
    num_blocks=64,
    max_model_len=512,
    max_num_seqs=8,
    max_num_batched_tokens=128,
    seed=None,
) -> EngineCore:
    config = EngineConfig(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        seed=seed,
    )
    runner = ModelRunner(
        model or FakeModel(),
        num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    scheduler = Scheduler(BlockPool(num_blocks), max_model_len, max_num_seqs, max_num_batched_tokens)
    return EngineCore(config, scheduler, runner, FakeTokenizer(), (EOS,))


def run_all(core) -> dict[str, list]:
    """Deltas of every request, by id, until the core is idle."""
    deltas: dict[str, list] = {}
    while core.has_unfinished:
        for delta in core.step():
            deltas.setdefault(delta.request_id, []).append(delta)
    return deltas


def tokens_of(deltas) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def text_of(deltas) -> str:
    return "".join(delta.text for delta in deltas)
