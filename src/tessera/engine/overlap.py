"""The step loop one step ahead: the host schedules, and reads tokens, while the device computes.

A step is launched before the tokens of the one before it are known. Until they are, a request's newest token
is the placeholder PENDING: the scheduler counts it like any other, and the runner takes its value from the
device. What a step drew for a request that has ended meanwhile is dropped. Its blocks may be in use again by
then, but only by steps that the device starts later.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tessera.engine.core import Active, EngineCore
from tessera.engine.request import Delta
from tessera.engine.scheduler import ScheduledTokens

PENDING: Final = -1
"""In a request's token ids: drawn by the step in flight, not seen by the host yet."""


class Pending(Protocol):
    """A step on its way."""

    def tokens(self) -> list[int]:
        """Waits for the step; the next token of each entry that sampled, in order."""
        ...


class StreamRunner(Protocol):
    """A runner whose steps run in the order submitted while the host goes on."""

    @property
    def vocab_size(self) -> int: ...
    def run(self, step: list[ScheduledTokens]) -> list[int]: ...
    def submit(self, step: Sequence[ScheduledTokens]) -> Pending:
        """Launch `step`. A PENDING last token stands for what the step before drew for that request."""
        ...


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step: who sampled in it, and how many tokens each had before."""

    sampled: list[tuple[Active, int]]
    pending: Pending


class OverlappedCore(EngineCore):
    """As `EngineCore`, except that `step` launches one step and returns the deltas of the step before."""

    runner: StreamRunner

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._flight: Flight | None = None

    def step(self) -> list[Delta]:
        """Launch the next step, then wait for the last one: what that added, at most one delta a request."""
        landing, self._flight = self._flight, self._launch()
        deltas = self._land(landing) if landing else []
        self._observe_queues()
        if not self.has_unfinished:
            self._flight = None
            self.scheduler.check_integrity()
        return deltas

    def _launch(self) -> Flight | None:
        step = self.scheduler.schedule()
        if not step:  # only last tokens are missing
            return None
        now = time.monotonic()
        for tokens in step:
            if tokens.request.first_scheduled_time is None:
                self.metrics.scheduled(tokens.request, now)
        self.metrics.iteration_tokens_total.observe(sum(tokens.count for tokens in step))
        pending = self.runner.submit(step)
        sampled = [
            (self._active[tokens.request.id], tokens.request.num_tokens) for tokens in step if tokens.samples
        ]
        self.scheduler.advance(step)
        for active, _ in sampled:
            active.request.token_ids.append(PENDING)
        return Flight(sampled, pending)

    def _land(self, flight: Flight) -> list[Delta]:
        """Put the flight's tokens in the place of their placeholders."""
        tokens = flight.pending.tokens()
        now = time.monotonic()
        deltas = []
        for (active, length), token in zip(flight.sampled, tokens, strict=True):
            request = active.request
            if self._active.get(request.id) is not active:
                continue  # ended while the step ran
            newer = len(request.token_ids) - length - 1  # placeholders of the step launched since
            del request.token_ids[length:]
            delta = self._accept(active, token, now)
            if delta.finish_reason is None:
                request.token_ids += [PENDING] * newer
            deltas.append(delta)
        return deltas
