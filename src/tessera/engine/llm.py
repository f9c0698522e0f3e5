"""The offline engine: prompts in, finished texts out, in the caller's thread."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from torch import Tensor

from tessera.engine.block_pool import blocks_for
from tessera.engine.build import build_core
from tessera.engine.config import EngineConfig
from tessera.engine.core import EngineCore
from tessera.engine.errors import EngineConfigError
from tessera.engine.request import Delta, FinishReason, Request, RequestOutput
from tessera.engine.runner import ModelRunner
from tessera.engine.sampling_params import SamplingParams
from tessera.engine.scheduler import ScheduledTokens
from tessera.errors import InvalidRequestError

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """One model, many prompts at once.

    llm = LLM("model.gguf", max_model_len=1024)
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8)):
        print(output.text)

    `options` are those of EngineConfig, by default as `device` has them. Raises what `build_core` raises. Not
    for several threads at once.
    """

    def __init__(self, model: str | Path, *, device: str = "cpu", **options: Any) -> None:
        self._set_core(build_core(model, EngineConfig.on(device, **options), device))

    @classmethod
    def from_core(cls, core: EngineCore) -> Self:
        """Around a core that exists; its runner must be a ModelRunner if `prompt_logits` is used."""
        llm = cls.__new__(cls)
        llm._set_core(core)
        return llm

    def _set_core(self, core: EngineCore) -> None:
        self.core = core
        self.tokenizer = core.tokenizer
        self.metrics = core.metrics
        self.info = core.info
        self._count = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt (text, or token ids); outputs in the order of the prompts.

        `sampling` is one for all or one for each. All are checked before any is run. Raises
        InvalidRequestError; if a step fails, nothing of the call is left in the engine.
        """
        batch = _prompts(prompts)
        params = _params(sampling, len(batch))
        encoded = [self._encode(prompt) for prompt in batch]
        for ids, param in zip(encoded, params, strict=True):
            self.core.check(ids, param)
        requests = {self._name(): pair for pair in zip(encoded, params, strict=True)}
        deltas: dict[str, list[Delta]] = {name: [] for name in requests}
        for delta in self._run(requests):
            deltas[delta.request_id].append(delta)
        return [
            _output(prompt, ids, parts)
            for prompt, ids, parts in zip(batch, encoded, deltas.values(), strict=True)
        ]

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Iterator[Delta]:
        """Deltas of one prompt as they come. Leaving the iterator early aborts the request."""
        ids, params = self._encode(prompt), sampling or SamplingParams()
        self.core.check(ids, params)
        return self._run({self._name(): (ids, params)})

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """The assistant's next turn of one conversation, or of several.

        A message is {"role": …, "content": …}. Raises ChatTemplateError if the model has no template.
        """
        return self.generate([self.chat_ids(chat) for chat in _conversations(conversations)], sampling)

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as token ids, ready for the assistant's turn."""
        return self.tokenizer.encode(self.tokenizer.apply_chat_template(messages))

    def prompt_logits(self, token_ids: Sequence[int]) -> Iterator[Tensor]:
        """float32 [n, vocab] pieces: logits after every token of a prompt, in order, through the path that
        serves (paged cache as stored, prefill in chunks of max_num_batched_tokens).

        Raises InvalidRequestError for an empty prompt, unknown ids, or more than `max_model_len` tokens.
        """
        runner, scheduler = self.core.runner, self.core.scheduler
        if not isinstance(runner, ModelRunner):
            raise EngineConfigError(f"prompt_logits needs a ModelRunner, not {type(runner).__name__}")
        self.core.check_prompt(token_ids)
        count = len(token_ids)
        if count > scheduler.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {count} tokens, the context {scheduler.max_model_len}", "prompt"
            )
        request = Request(self._name(), list(token_ids), count, SamplingParams(max_tokens=1), seed=0)
        request.block_table = scheduler.pool.allocate(blocks_for(count))
        chunk = scheduler.max_num_batched_tokens
        try:
            for start in range(0, count, chunk):
                yield from runner.logits([ScheduledTokens(request, start, min(chunk, count - start))])
        finally:
            scheduler.pool.release(request.block_table)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=True)
        return list(prompt)

    def _name(self) -> str:
        self._count += 1
        return f"offline-{self._count}"

    def _run(self, requests: Mapping[str, tuple[list[int], SamplingParams]]) -> Iterator[Delta]:
        """Add the requests and step until they have finished; abort the rest when left early."""
        unfinished: set[str] = set()
        try:
            for name, (ids, params) in requests.items():
                self.core.add(name, ids, params)
                unfinished.add(name)
            while unfinished:
                for delta in self.core.step():
                    if delta.finish_reason is not None:
                        unfinished.discard(delta.request_id)
                    if delta.request_id in requests:
                        yield delta
        finally:
            for name in unfinished:
                self.core.abort(name)


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast(Sequence[int], prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _conversations(chats: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if chats and isinstance(chats[0], Mapping):
        return [cast(Sequence[Message], chats)]
    return list(cast(Sequence[Sequence[Message]], chats))


def _params(sampling: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if sampling is None:
        return [SamplingParams()] * count
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if len(sampling) != count:
        raise InvalidRequestError(f"{len(sampling)} sampling parameters for {count} prompts", "sampling")
    return list(sampling)


def _output(prompt: Prompt, ids: Sequence[int], deltas: Sequence[Delta]) -> RequestOutput:
    last = deltas[-1]
    return RequestOutput(
        request_id=last.request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=tuple(ids),
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=last.finish_reason or FinishReason.ERROR,
        stop_reason=last.stop_reason,
        error=last.error,
        num_cached_tokens=last.num_cached_tokens,
    )
