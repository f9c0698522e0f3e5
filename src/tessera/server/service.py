"""What endpoints share: prompts to token ids, sampling parameters, room in the context and in the queue."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from tessera.engine.async_engine import AsyncEngine
from tessera.engine.sampling_params import SEED_BITS, SamplingParams
from tessera.errors import InvalidRequestError
from tessera.server.config import ServerConfig
from tessera.server.errors import ModelNotFoundError, NotReadyError, OverloadedError
from tessera.server.generation import Generation, Job
from tessera.server.protocol import ChatRequest, CompletionRequest, Message, Prompt

RETRY_AFTER_S: Final = 1
DEFAULT_COMPLETION_TOKENS: Final = 16
"""max_tokens of /v1/completions where it is not given, as in the OpenAI API."""


@dataclass(slots=True)
class Service:
    """One engine, its limits, and what runs on it for whom."""

    engine: AsyncEngine
    config: ServerConfig
    draining: bool = False
    refused: int = 0
    running: dict[str, Generation] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """Sequences that may run or wait."""
        return self.engine.config.max_num_seqs + self.config.max_queued

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFoundError if a request asks for another model than the one served."""
        if name is not None and name != self.config.model_name:
            raise ModelNotFoundError(f"model {name!r} is not served here: use {self.config.model_name!r}")

    def check_load(self, sequences: int) -> None:
        """Raises OverloadedError if `sequences` more do not fit the queue, InvalidRequestError if never."""
        if sequences > self.capacity:
            raise InvalidRequestError(
                f"the request asks for {sequences} sequences and the server holds {self.capacity}: "
                "send fewer prompts or a smaller n",
                param="n",
            )
        if self.draining:
            raise NotReadyError("the server is shutting down")
        busy = sum(len(generation.jobs) for generation in self.running.values())
        if busy + sequences > self.capacity:
            self.refused += 1
            raise OverloadedError(
                f"{busy} sequences are running or waiting of {self.capacity} allowed: try again later",
                RETRY_AFTER_S,
            )

    def start(self, request_id: str, jobs: Sequence[Job], user: str | None = None) -> Generation:
        """Submit `jobs` to the engine; `user` goes to the log. The caller closes the generation."""
        self.check_load(len(jobs))
        generation = Generation(request_id, jobs, user, self.engine, on_close=self._forget)
        self.running[request_id] = generation
        try:
            generation.submit()
        except BaseException:
            generation.close()
            raise
        return generation

    def abort_all(self) -> None:
        """End every running request with an error."""
        for generation in list(self.running.values()):
            generation.abort()

    def _forget(self, generation: Generation) -> None:
        del self.running[generation.id]

    async def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`. Runs in a thread: a long text must not hold up other requests."""
        return await asyncio.to_thread(self.engine.tokenizer.encode, text, add_special_tokens)

    async def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens included. Raises InvalidRequestError for unknown ids."""
        return await asyncio.to_thread(self.engine.tokenizer.decode, self._checked(ids, "tokens"), False)

    async def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the assistant's turn."""
        turns = [message.flat() for message in messages]
        return await self.encode(await asyncio.to_thread(self.engine.tokenizer.apply_chat_template, turns))

    async def prompts(self, prompt: Prompt) -> list[list[int]]:
        """Token ids of each prompt of a completion request. Raises InvalidRequestError for empty ones."""
        items = _separate(prompt)
        if not items or not all(items):
            raise InvalidRequestError("prompt is empty: give at least one token", param="prompt")
        self.check_load(len(items))
        return [
            await self.encode(item, True) if isinstance(item, str) else self._checked(item, "prompt")
            for item in items
        ]

    def _checked(self, ids: list[int], param: str) -> list[int]:
        """Raises InvalidRequestError for ids outside the vocabulary."""
        vocab = self.engine.core.runner.vocab_size
        if bad := [token for token in ids if not 0 <= token < vocab]:
            raise InvalidRequestError(
                f"token id {bad[0]} is outside the vocabulary of {vocab} tokens", param=param
            )
        return ids

    def jobs(
        self,
        prompts: Sequence[list[int]],
        request: ChatRequest | CompletionRequest,
        default_tokens: int | None,
    ) -> list[Job]:
        """`n` jobs for each prompt. Raises InvalidRequestError naming the parameter that is wrong.

        Choice i of a prompt is sampled with seed + i where a seed is given, so that choices differ and each
        can be repeated alone.
        """
        n = 1 if request.n is None else request.n
        if not 1 <= n <= self.config.max_choices:
            raise InvalidRequestError(
                f"n is {n}: it must be between 1 and {self.config.max_choices}", param="n"
            )
        jobs = []
        for ids in prompts:
            sampling = self._sampling(len(ids), request, default_tokens)
            jobs += [Job(ids, replace(sampling, seed=_choice_seed(sampling.seed, i)), i) for i in range(n)]
        return jobs

    def _sampling(
        self, prompt_len: int, request: ChatRequest | CompletionRequest, default_tokens: int | None
    ) -> SamplingParams:
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k", "seed")
            if (value := getattr(request, name)) is not None
        }
        return SamplingParams(
            max_tokens=self._max_tokens(prompt_len, request.max_tokens, default_tokens),
            stop=() if request.stop is None else request.stop,
            stop_token_ids=request.stop_token_ids or (),
            ignore_eos=request.ignore_eos,
            **given,
        )

    def _max_tokens(self, prompt_len: int, asked: int | None, default: int | None) -> int:
        """Tokens to generate at most. Never cuts what was asked for silently: too much is refused."""
        context = self.engine.core.max_model_len
        room = context - prompt_len
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {prompt_len} tokens and the context {context}, one of which must be left "
                f"to generate: shorten the prompt by {1 - room} tokens",
                param="messages" if default is None else "prompt",
            )
        if asked is None:
            return room if default is None else min(default, room)
        if asked > room:
            raise InvalidRequestError(
                f"the prompt has {prompt_len} tokens, max_tokens asks for {asked} and the context is "
                f"{context}: ask for at most {room} or shorten the prompt by {asked - room} tokens",
                param="max_tokens",
            )
        return asked


def _choice_seed(seed: int | None, choice: int) -> int | None:
    if seed is None or seed + choice < 1 << SEED_BITS:
        return None if seed is None else seed + choice
    return seed + choice - (1 << SEED_BITS)


def _separate(prompt: Prompt) -> list[str] | list[list[int]]:
    """The prompts of a completion request, one element each."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return cast(list[str] | list[list[int]], prompt)
