"""One HTTP request's sequences on the engine: submitted, merged into one stream, and aborted together."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Self

from tessera.engine.async_engine import AsyncEngine
from tessera.engine.request import Delta, FinishReason
from tessera.engine.sampling_params import SamplingParams
from tessera.errors import TesseraError
from tessera.server.errors import EngineFailedError, NotReadyError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence: a prompt, how to continue it, and which of the prompt's `n` choices this is."""

    prompt_token_ids: list[int]
    sampling: SamplingParams
    choice: int


@dataclass(frozen=True, slots=True)
class Event:
    """What one step added to job `index`."""

    index: int
    text: str
    num_tokens: int
    finish_reason: str | None


@dataclass(slots=True)
class Choice:
    """A finished choice."""

    text: str = ""
    finish_reason: str = ""

    def add(self, event: Event) -> None:
        self.text += event.text
        self.finish_reason = event.finish_reason or ""


@dataclass(slots=True)
class Generation:
    """Running sequences of one HTTP request. `close` must be called, whatever happens.

    Iterating yields events of all jobs as they come, until every one has finished.
    """

    id: str
    jobs: Sequence[Job]
    user: str | None
    engine: AsyncEngine
    on_close: Callable[[Self], None]
    completion_tokens: int = 0
    _events: "asyncio.Queue[Event | TesseraError]" = field(default_factory=asyncio.Queue)
    _pumps: list["asyncio.Task[None]"] = field(default_factory=list)
    _closed: bool = False
    _start: float = field(default_factory=monotonic)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(len(job.prompt_token_ids) for job in self.jobs if job.choice == 0)

    def submit(self) -> None:
        """Hand every job to the engine. Raises InvalidRequestError where one can never run."""
        for index, job in enumerate(self.jobs):
            deltas = self.engine.generate(self._sequence_id(index), job.prompt_token_ids, job.sampling)
            self._pumps.append(asyncio.create_task(self._pump(index, deltas)))

    async def __aiter__(self) -> AsyncIterator[Event]:
        running = len(self.jobs)
        while running:
            event = await self._events.get()
            if isinstance(event, TesseraError):
                raise event
            self.completion_tokens += event.num_tokens
            running -= event.finish_reason is not None
            yield event

    async def collect(self) -> list[Choice]:
        """Wait for every job; what became of each, in order."""
        choices = [Choice() for _ in self.jobs]
        async for event in self:
            choices[event.index].add(event)
        return choices

    def close(self) -> None:
        """Abort what still runs and give the places in the queue back. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for pump in self._pumps:
            if not pump.done():
                pump.cancel()  # leaving its stream makes the engine abort the sequence
        self.on_close(self)
        log.info(
            "%s (user %r): %d prompt and %d generated tokens in %.2f s",
            self.id,
            self.user,
            self.prompt_tokens,
            self.completion_tokens,
            monotonic() - self._start,
        )

    def abort(self) -> None:
        """Make the engine end every sequence; the stream then ends with an error."""
        for index in range(len(self.jobs)):
            self.engine.abort(self._sequence_id(index))

    def _sequence_id(self, index: int) -> str:
        return f"{self.id}-{index}"

    async def _pump(self, index: int, deltas: AsyncIterator[Delta]) -> None:
        """Moves one sequence's deltas into the common queue; ends it with an error if the engine does not."""
        try:
            async for delta in deltas:
                self._events.put_nowait(_event(index, delta))
                if delta.finish_reason is not None:
                    return
            self._events.put_nowait(EngineFailedError("the engine ended a sequence without a reason"))
        except TesseraError as error:
            self._events.put_nowait(error)
        except Exception as error:
            log.exception("sequence %s failed", self._sequence_id(index))
            self._events.put_nowait(EngineFailedError(f"{type(error).__name__}: {error}"))


def _event(index: int, delta: Delta) -> Event:
    """Raises NotReadyError for an aborted and EngineFailedError for a failed sequence."""
    if delta.finish_reason is FinishReason.ABORT:
        raise NotReadyError("the request was aborted because the server is shutting down")
    if delta.finish_reason is FinishReason.ERROR:
        raise EngineFailedError(delta.error or "the engine failed; the server's log has the cause")
    return Event(index, delta.text, len(delta.token_ids), delta.finish_reason)
