"""/v1/completions: bodies from a generation's events."""

from collections.abc import AsyncGenerator

from tessera.server.generation import Generation
from tessera.server.protocol import Completion, TextChoice, Usage, now


async def whole(generation: Generation, model: str) -> Completion:
    """The answer once every choice has finished. Choice i of prompt p has index p * n + i."""
    choices = await generation.collect()
    return Completion(
        id=generation.id,
        created=now(),
        model=model,
        choices=[
            TextChoice(index=i, text=c.text, finish_reason=c.finish_reason) for i, c in enumerate(choices)
        ],
        usage=Usage.of(generation.prompt_tokens, generation.completion_tokens),
    )


async def chunks(generation: Generation, model: str, include_usage: bool) -> AsyncGenerator[Completion, None]:
    """Text of all choices as it comes, then usage if asked for."""
    created = now()
    async for event in generation:
        if event.text or event.finish_reason is not None:
            choice = TextChoice(index=event.index, text=event.text, finish_reason=event.finish_reason)
            yield Completion(id=generation.id, created=created, model=model, choices=[choice])
    if include_usage:
        usage = Usage.of(generation.prompt_tokens, generation.completion_tokens)
        yield Completion(id=generation.id, created=created, model=model, choices=[], usage=usage)
