"""/v1/chat/completions: bodies from a generation's events."""

from collections.abc import AsyncGenerator

from tessera.server.generation import Generation
from tessera.server.protocol import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Usage,
    now,
)


async def whole(generation: Generation, model: str) -> ChatCompletion:
    """The answer once every choice has finished."""
    choices = await generation.collect()
    return ChatCompletion(
        id=generation.id,
        created=now(),
        model=model,
        choices=[
            ChatChoice(index=i, message=ChatMessage(content=c.text), finish_reason=c.finish_reason)
            for i, c in enumerate(choices)
        ],
        usage=Usage.of(generation.prompt_tokens, generation.completion_tokens),
    )


async def chunks(generation: Generation, model: str, include_usage: bool) -> AsyncGenerator[ChatChunk, None]:
    """The role of each choice at once, its text as it comes, its finish_reason, then usage if asked for."""
    created = now()

    def chunk(index: int, delta: ChatDelta, finish_reason: str | None = None) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, finish_reason=finish_reason)
        return ChatChunk(id=generation.id, created=created, model=model, choices=[choice])

    for index in range(len(generation.jobs)):
        yield chunk(index, ChatDelta(role="assistant", content=""))
    async for event in generation:
        if event.text:
            yield chunk(event.index, ChatDelta(content=event.text))
        if event.finish_reason is not None:
            yield chunk(event.index, ChatDelta(), event.finish_reason)
    if include_usage:
        usage = Usage.of(generation.prompt_tokens, generation.completion_tokens)
        yield ChatChunk(id=generation.id, created=created, model=model, choices=[], usage=usage)
