"""The engine behind an event loop: requests go in, streams of deltas come out.

    engine = AsyncEngine(core)
    await engine.start()                                   # engine thread, self-check
    async for delta in engine.generate("id", ids, params): ...
    await engine.drain(timeout=30)
    await engine.shutdown()

One thread owns the core and everything below it (scheduler, model, tokenizer state). The event loop talks to
it through a command queue and hears back through `call_soon_threadsafe`, one call per step. If a step raises,
every request in flight ends with finish_reason error, the engine is dead from then on, and `health` says why.
Never imports torch.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.engine.errors import (
    DuplicateRequestError,
    EngineClosedError,
    EngineDeadError,
)
from tessera.engine.request import Delta, FinishReason
from tessera.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tessera.engine.core import EngineCore

log = logging.getLogger(__name__)

Command = Callable[[], list[Delta]]


@dataclass(frozen=True, slots=True)
class Health:
    """What /health reports: `cause` of death if dead, and how long the step in progress has taken (s)."""

    alive: bool
    cause: str | None
    step_seconds: float


class AsyncEngine:
    """Serves one `EngineCore` to the event loop that called `start`. All methods are for that loop only."""

    def __init__(self, core: "EngineCore") -> None:
        self.core = core
        self.tokenizer = core.tokenizer
        self.config = core.config
        self.metrics = core.metrics
        self.ready = False
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, asyncio.Queue[Delta]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._cause: BaseException | None = None
        self._step_started: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="tessera-engine", daemon=True)

    async def start(self) -> None:
        """Start the engine thread and run the self-check. Raises SelfCheckError; afterwards `ready` holds."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        done: asyncio.Future[None] = self._loop.create_future()
        self._commands.put(lambda: self._self_check(done))
        try:
            await done
        except BaseException:
            await self.shutdown()
            raise
        self.ready = True

    def generate(
        self, request_id: str, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> AsyncIterator[Delta]:
        """Check the request now, submit it when iterated; the last delta carries the finish_reason.

        Leaving the iterator early (cancellation included) aborts the request.
        Raises InvalidRequestError (can never be served), DuplicateRequestError, EngineClosedError or
        EngineDeadError: now, or the latter three on the first iteration if that comes too late.
        """
        self._check_open(request_id)
        self.core.check(prompt_token_ids, sampling)
        return self._stream(request_id, list(prompt_token_ids), sampling)

    async def _stream(
        self, request_id: str, prompt: list[int], sampling: SamplingParams
    ) -> AsyncIterator[Delta]:
        self._check_open(request_id)  # much may have happened since `generate`
        deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self._streams[request_id] = deltas
        self._idle.clear()
        self._commands.put(lambda: self.core.add(request_id, prompt, sampling))
        finished = False
        try:
            while not finished:
                delta = await deltas.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            if not finished:
                self.abort(request_id)

    def _check_open(self, request_id: str) -> None:
        if self._cause is not None:
            raise EngineDeadError(f"the engine stopped: {self._cause!r}; restart the server")
        if self._closed or self._loop is None:
            raise EngineClosedError(
                "the engine accepts no requests: it is draining, shut down or not started"
            )
        if request_id in self._streams:
            raise DuplicateRequestError(f"request id {request_id!r} is in use")

    def abort(self, request_id: str) -> None:
        """End a request with finish_reason abort before the next step. An unknown id is a no-op."""
        if request_id in self._streams:
            self._commands.put(lambda: self.core.abort(request_id))

    async def drain(self, timeout: float | None = None) -> bool:
        """Accept nothing new and wait until all requests have finished. False if `timeout` (s) came first."""
        self._closed = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def shutdown(self) -> None:
        """Abort what is left, stop the engine thread and wait for it. Safe to call twice."""
        self._closed = True
        self.ready = False
        for request_id in list(self._streams):
            self.abort(request_id)
        self._commands.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # lets the last deltas the thread handed over reach their streams

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and not finished: what a queue limit counts."""
        return len(self._streams)

    def health(self) -> Health:
        """Whether the engine thread can serve. How long a step may take is for the caller to judge."""
        started = self._step_started
        step_seconds = 0.0 if started is None else time.monotonic() - started
        cause = None if self._cause is None else repr(self._cause)
        alive = self._cause is None and self._thread.is_alive()
        return Health(alive, cause, step_seconds)

    # Below: the engine thread, except _dispatch and _finish_check.

    def _run(self) -> None:
        try:
            while self._handle_commands():
                if self.core.has_unfinished:
                    self._step_started = time.monotonic()
                    deltas = self.core.step()
                    self._step_started = None
                    self._publish(deltas)
        except BaseException as error:
            log.exception("engine step failed")
            self._die(error)

    def _handle_commands(self) -> bool:
        """Run queued commands; wait for one when there is nothing to compute. False: stop."""
        while not self._commands.empty() or not self.core.has_unfinished:
            command = self._commands.get()
            if command is None:
                return False
            self._publish(command())
        return True

    def _die(self, error: BaseException) -> None:
        """Fail every request in flight; those whose command is still queued fail in _dispatch_death."""
        self._cause = error
        self._step_started = None
        self._call(self._dispatch_death)

    def _publish(self, deltas: list[Delta]) -> None:
        if deltas:
            self._call(lambda: self._dispatch(deltas))

    def _call(self, callback: Callable[[], Any]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: nobody is listening any more
            log.debug("event loop closed with deltas undelivered")

    def _self_check(self, done: asyncio.Future[None]) -> list[Delta]:
        failure: BaseException | None = None
        try:
            self.core.self_check()
        except BaseException as error:
            failure = error
        self._call(lambda: _settle(done, failure))
        return []

    def _dispatch(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is None:
                continue
            stream.put_nowait(delta)
            if delta.finish_reason is not None:
                del self._streams[delta.request_id]
        if not self._streams:
            self._idle.set()

    def _dispatch_death(self) -> None:
        message = f"the engine stopped: {self._cause!r}"
        self._dispatch(
            [
                Delta(request_id, "", (), 0, 0, FinishReason.ERROR, error=message)
                for request_id in list(self._streams)
            ]
        )


def _settle(done: asyncio.Future[None], failure: BaseException | None) -> None:
    if done.cancelled():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
