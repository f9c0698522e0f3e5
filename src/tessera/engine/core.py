"""The step loop: schedule, compute, sample, turn tokens into text, end what is finished. One thread."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tessera.engine.config import EngineConfig
from tessera.engine.errors import DuplicateRequestError, SelfCheckError
from tessera.engine.info import EngineInfo
from tessera.engine.metrics import EngineMetrics
from tessera.engine.request import Delta, FinishReason, Request
from tessera.engine.sampling_params import SEED_BITS, SamplingParams
from tessera.engine.scheduler import ScheduledTokens, Scheduler
from tessera.engine.stop import StopChecker
from tessera.errors import InvalidRequestError

NOT_FINITE: Final = -1
"""A runner's answer where logits were NaN or infinite."""


class Runner(Protocol):
    """What computes a step."""

    @property
    def vocab_size(self) -> int: ...

    def run(self, step: list[ScheduledTokens]) -> list[int]:
        """Compute the tokens of `step`; the next token of each entry that `samples`, in order."""
        ...


class DecodeStream(Protocol):
    """Ids to text one at a time, never half a character; all pieces joined are `decode` of all ids."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class Tokenizer(Protocol):
    """The part of formats' tokenizer that engine and server use."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def decode_stream(self) -> DecodeStream: ...
    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str: ...


@dataclass(slots=True)
class Active:
    """A request in flight and the state that turns its tokens into text."""

    request: Request
    decoder: DecodeStream
    stops: StopChecker


class EngineCore:
    """Requests in, deltas out; `step` until `has_unfinished` is false.

    Every request added yields deltas of which exactly one, the last, carries a finish_reason.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        info: EngineInfo | None = None,
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.info = info or EngineInfo()
        self.metrics = EngineMetrics()
        self._seeds = random.Random(config.seed)
        self._active: dict[str, Active] = {}

    @property
    def max_model_len(self) -> int:
        return self.scheduler.max_model_len

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def check(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        """Raises InvalidRequestError if the request could never be served. Changes nothing; any thread."""
        self.check_prompt(prompt)
        self.scheduler.max_total_tokens(len(prompt), sampling.max_tokens)

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raises InvalidRequestError if the prompt is empty or holds ids the model does not have."""
        if not prompt:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token", "prompt")
        if min(prompt) < 0 or max(prompt) >= self.runner.vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < self.runner.vocab_size)
            raise InvalidRequestError(
                f"the prompt holds token {wrong}: ids go from 0 to {self.runner.vocab_size - 1}", "prompt"
            )

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams) -> list[Delta]:
        """Queue a request. Raises InvalidRequestError, DuplicateRequestError. Returns no deltas yet."""
        self.check(prompt, sampling)
        if request_id in self._active:
            raise DuplicateRequestError(f"request id {request_id!r} is in use")
        seed = self._seeds.getrandbits(SEED_BITS) if sampling.seed is None else sampling.seed
        request = Request(request_id, list(prompt), len(prompt), sampling, seed)
        self.scheduler.add(request)
        self._active[request_id] = Active(request, self.tokenizer.decode_stream(), StopChecker(sampling.stop))
        self._observe_queues()
        return []

    def abort(self, request_id: str) -> list[Delta]:
        """End a request with finish_reason abort; its last delta. An unknown id is a no-op."""
        active = self._active.get(request_id)
        if active is None:
            return []
        delta = self._finish(active, "", (), FinishReason.ABORT)
        self._observe_queues()
        return [delta]

    def step(self) -> list[Delta]:
        """Compute one step and return what it added, at most one delta a request."""
        step = self.scheduler.schedule()
        now = time.monotonic()
        for tokens in step:
            if tokens.request.first_scheduled_time is None:
                self.metrics.scheduled(tokens.request, now)
        self.metrics.iteration_tokens_total.observe(sum(tokens.count for tokens in step))
        sampled = self.runner.run(step)
        self.scheduler.advance(step)
        sampling = [self._active[tokens.request.id] for tokens in step if tokens.samples]
        now = time.monotonic()
        deltas = [self._accept(active, token, now) for active, token in zip(sampling, sampled, strict=True)]
        self._observe_queues()
        if not self.has_unfinished:
            self.scheduler.check_integrity()
        return deltas

    def _accept(self, active: Active, token: int, now: float) -> Delta:
        """Append a sampled token to its request and end the request where it must."""
        request, sampling = active.request, active.request.sampling
        if token == NOT_FINITE:
            self.metrics.corrupted_requests += 1
            self.scheduler.pool.forget(request.block_table)  # what broke this one must not be found by others
            error = f"logits after {request.num_tokens} tokens are not finite: broken weights or kernels"
            return self._finish(active, "", (), FinishReason.ERROR, error=error)
        request.token_ids.append(token)
        self.metrics.token(request, now)
        if token in sampling.stop_token_ids or (token in self.eos_ids and not sampling.ignore_eos):
            return self._finish_text(active, "", token, FinishReason.STOP, stop_reason=token)
        text, stop = active.stops.push(active.decoder.push(token))
        if stop is not None:
            return self._finish(active, text, (token,), FinishReason.STOP, stop_reason=stop)
        if request.num_tokens >= request.max_total_tokens:
            return self._finish_text(active, text, token, FinishReason.LENGTH)
        return _delta(request, text, (token,))

    def _finish_text(
        self,
        active: Active,
        text: str,
        token: int,
        reason: FinishReason,
        stop_reason: int | None = None,
    ) -> Delta:
        """End a request after showing what was held back; a stop string may complete in that."""
        rest, stop = active.stops.push(active.decoder.flush())
        if stop is not None:
            return self._finish(active, text + rest, (token,), FinishReason.STOP, stop_reason=stop)
        text += rest + active.stops.flush()
        return self._finish(active, text, (token,), reason, stop_reason=stop_reason)

    def _finish(
        self,
        active: Active,
        text: str,
        token_ids: tuple[int, ...],
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> Delta:
        request = active.request
        self.scheduler.finish(request)
        del self._active[request.id]
        self.metrics.finished(request, reason, time.monotonic())
        return _delta(request, text, token_ids, reason, stop_reason, error)

    def _observe_queues(self) -> None:
        metrics, scheduler = self.metrics, self.scheduler
        metrics.num_requests_running = len(scheduler.running)
        metrics.num_requests_waiting = len(scheduler.waiting)
        metrics.kv_cache_usage_perc = scheduler.pool.usage
        metrics.num_preemptions = scheduler.num_preemptions

    def self_check(self) -> None:
        """Run a canned greedy request across a block boundary, uncounted. Raises SelfCheckError.

        It also compiles or loads every kernel before the first real request.
        """
        length = min(70, self.max_model_len - 2)
        prompt = [index * 97 % self.runner.vocab_size for index in range(length)]
        request = Request("self-check", prompt, length, SamplingParams(max_tokens=2, temperature=0), seed=0)
        self.scheduler.add(request)
        try:
            while request.num_output_tokens < 2:
                step = self.scheduler.schedule()
                sampled = self.runner.run(step)
                self.scheduler.advance(step)
                if NOT_FINITE in sampled:
                    raise SelfCheckError(
                        f"logits after a canned prompt of {length} tokens are not finite: the checkpoint or "
                        "a kernel is broken; run `tessera doctor`"
                    )
                request.token_ids += sampled
        finally:
            self.scheduler.finish(request)
            self.scheduler.pool.forget_all()
        self.scheduler.check_integrity()


def _delta(
    request: Request,
    text: str,
    token_ids: tuple[int, ...],
    reason: FinishReason | None = None,
    stop_reason: str | int | None = None,
    error: str | None = None,
) -> Delta:
    return Delta(
        request.id,
        text,
        token_ids,
        request.num_prompt_tokens,
        request.num_output_tokens,
        reason,
        stop_reason,
        error,
        request.num_cached_tokens,
    )
