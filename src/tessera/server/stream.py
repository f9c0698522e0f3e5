"""Server-sent events, and noticing that a client has gone."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from tessera.errors import TesseraError
from tessera.server.replies import error_body

T = TypeVar("T")
KEEP_ALIVE: Final = ": keep-alive\n\n"
DONE: Final = "data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed the connection: nobody reads the answer."""


def sse(chunk: BaseModel) -> str:
    """One event holding `chunk` as JSON."""
    return f"data: {chunk.model_dump_json()}\n\n"


class EventStream(StreamingResponse):
    """Sends chunks as they come, a comment after `keep_alive_s` of silence, and `[DONE]` at the end.

    An error on the way becomes an event with an OpenAI error body, as the status line is long gone.
    `close` runs when the stream ends in whatever way, a client that disconnects included.
    """

    def __init__(
        self, chunks: AsyncGenerator[BaseModel, None], close: Callable[[], None], keep_alive_s: float
    ) -> None:
        self._close = close
        events = _with_keep_alive(_events(chunks), keep_alive_s)
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _events(chunks: AsyncGenerator[BaseModel, None]) -> AsyncGenerator[str, None]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield sse(chunk)
        except TesseraError as error:
            yield f"data: {json.dumps(error_body(error).model_dump())}\n\n"
        yield DONE


async def _with_keep_alive(events: AsyncGenerator[str, None], period_s: float) -> AsyncIterator[str]:
    waiting: asyncio.Task[str] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({waiting}, timeout=period_s)
            if not done:
                yield KEEP_ALIVE
                continue
            try:
                event = waiting.result()
            except StopAsyncIteration:
                return
            waiting = None
            yield event
    finally:
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting
        await events.aclose()


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Result of `work`, which is cancelled if the client disconnects first (ClientGoneError)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
