"""ASGI middleware that refuses request bodies over a limit before they are held in memory."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Answers 413 to a body over `max_bytes`, whether its length was announced or not."""

    app: ASGIApp
    max_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise HTTPException(413, f"the body exceeds {self.max_bytes} bytes: send a shorter prompt")
            return message

        await self.app(scope, counting, send)
