"""A real engine over a model that can be predicted: it repeats its prompt, or spells its seed."""

import codecs
import threading
import time
from collections.abc import Sequence

from tessera.engine.async_engine import AsyncEngine
from tessera.engine.block_pool import BLOCK_SIZE, BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.core import NOT_FINITE, EngineCore
from tessera.engine.request import Request
from tessera.engine.scheduler import ScheduledTokens, Scheduler
from tessera.errors import InvalidRequestError

EOS = 256
BOS = 257
VOCAB = 258


class ByteTokenizer:
    """One token per byte of UTF-8."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return ([BOS] if add_special_tokens else []) + list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        names = {EOS: b"" if skip_special_tokens else b"<eos>", BOS: b"" if skip_special_tokens else b"<bos>"}
        return b"".join(names.get(i) if i in names else bytes([i]) for i in ids).decode(errors="replace")

    def decode_stream(self) -> "ByteStream":
        return ByteStream()

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        if any(m["role"] == "system" for m in messages[1:]):
            raise InvalidRequestError("system must come first", "messages")
        return "".join(f"{m['role']}:{m['content']};" for m in messages)


class ByteStream:
    """Bytes to text, whole characters only."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]) if token_id < EOS else b"")

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class EchoRunner:
    """Greedy requests get their prompt back, then EOS; sampled ones letters that depend on their seed only.

    delay_s  time that a step takes
    gate     steps wait for it
    fail     raised by the next step
    """

    vocab_size = VOCAB

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.fail: Exception | None = None
        self.not_finite = False
        self.steps = 0

    def run(self, step: list[ScheduledTokens]) -> list[int]:
        self.steps += 1
        self.gate.wait(timeout=30)
        time.sleep(self.delay_s)
        if self.fail is not None:
            raise self.fail
        return [self._next(tokens.request) for tokens in step if tokens.samples]

    def _next(self, request: Request) -> int:
        if self.not_finite:
            return NOT_FINITE
        i = request.num_output_tokens
        if not request.sampling.greedy:
            return ord("a") + (request.seed + 7 * i) % 26
        prompt = [t for t in request.token_ids[: request.num_prompt_tokens] if t != BOS]
        return prompt[i] if i < len(prompt) else EOS


def make_engine(max_model_len: int = 512, max_num_seqs: int = 4) -> AsyncEngine:
    """An engine that has not been started."""
    config = EngineConfig(
        max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=64, seed=1
    )
    pool = BlockPool(max_num_seqs * max_model_len // BLOCK_SIZE)
    scheduler = Scheduler(pool, max_model_len, max_num_seqs, config.max_num_batched_tokens)
    return AsyncEngine(EngineCore(config, scheduler, EchoRunner(), ByteTokenizer(), [EOS]))
