"""What the engine counts: plain numbers under the names dashboards expect. One process owns them.

The names are those of vLLM without prefix, with the same meaning; times are seconds, sizes are tokens.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from tessera.engine.request import FinishReason, Request

SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKENS: Final = tuple(float(2**power) for power in range(18))


@dataclass(slots=True)
class Histogram:
    """Counts of observations by upper bound (inclusive), as Prometheus has them; the last bucket is +Inf."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, observations at or below it), +Inf last."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))


def _seconds() -> Histogram:
    return Histogram(SECONDS)


def _tokens() -> Histogram:
    return Histogram(TOKENS)


@dataclass(slots=True)
class EngineMetrics:
    """Gauges hold the last step's state, counters only grow, histograms get one observation per event."""

    # gauges
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage_perc: float = 0.0
    # counters
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # of these, found
    corrupted_requests: int = 0  # logits that were not finite
    request_success: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    # histograms
    time_to_first_token_seconds: Histogram = field(default_factory=_seconds)
    inter_token_latency_seconds: Histogram = field(default_factory=_seconds)
    request_time_per_output_token_seconds: Histogram = field(default_factory=_seconds)
    e2e_request_latency_seconds: Histogram = field(default_factory=_seconds)
    request_queue_time_seconds: Histogram = field(default_factory=_seconds)
    request_prefill_time_seconds: Histogram = field(default_factory=_seconds)
    request_decode_time_seconds: Histogram = field(default_factory=_seconds)
    request_prompt_tokens: Histogram = field(default_factory=_tokens)
    request_generation_tokens: Histogram = field(default_factory=_tokens)
    iteration_tokens_total: Histogram = field(default_factory=_tokens)

    def scheduled(self, request: Request, now: float) -> None:
        """The request's first tokens are about to be computed (once, preemptions notwithstanding)."""
        request.first_scheduled_time = now
        self.prompt_tokens += request.num_prompt_tokens
        self.prefix_cache_queries += request.num_prompt_tokens
        self.prefix_cache_hits += request.num_cached_tokens
        self.request_queue_time_seconds.observe(now - request.arrival_time)

    def token(self, request: Request, now: float) -> None:
        """The request got one more token."""
        self.generation_tokens += 1
        if request.last_token_time is None:
            request.first_token_time = now
            self.time_to_first_token_seconds.observe(now - request.arrival_time)
        else:
            self.inter_token_latency_seconds.observe(now - request.last_token_time)
        request.last_token_time = now

    def finished(self, request: Request, reason: FinishReason, now: float) -> None:
        """The request ended; latencies are those of requests that ran to their end."""
        self.request_success[reason] += 1
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        assert request.first_scheduled_time is not None
        assert request.first_token_time is not None
        self.e2e_request_latency_seconds.observe(now - request.arrival_time)
        self.request_prefill_time_seconds.observe(request.first_token_time - request.first_scheduled_time)
        decode = now - request.first_token_time
        self.request_decode_time_seconds.observe(decode)
        if request.num_output_tokens > 1:
            self.request_time_per_output_token_seconds.observe(decode / (request.num_output_tokens - 1))
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(request.num_output_tokens)
