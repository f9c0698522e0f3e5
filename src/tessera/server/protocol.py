"""Request and response bodies of the OpenAI API, as far as this server implements it.

Requests are strict: a wrong type, an unknown field, or a parameter that is not implemented is refused by
name, never ignored. `_REFUSED` lists parameters of the API that are not implemented together with the
values that ask for nothing, which are let through.
"""

import time
import uuid
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

from tessera.errors import InvalidRequestError

_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "min_p": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}


def _whole_characters(text: str) -> str:
    """JSON can spell half of a surrogate pair (`"\\ud800"`), which is no character and has no encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{error.object[error.start]!r} is half a surrogate pair, not a character"
        ) from error
    return text


def _whole_numbers(ids: Any) -> Any:
    """Refuses a list at its first element that is no id: pydantic would report each of them."""
    if isinstance(ids, list):
        for index, token in enumerate(ids):
            if type(token) is not int:
                raise ValueError(f"element {index} is no token id, a whole number")
    return ids


Unicode = Annotated[str, AfterValidator(_whole_characters)]
TokenIds = Annotated[list[int], BeforeValidator(_whole_numbers)]


def _asks_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether `value` is null or one of `neutral`; False and 0 are different things here."""
    return value is None or any(
        value == n and isinstance(value, bool) is isinstance(n, bool) for n in neutral
    )


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: Unicode | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, raw: Any) -> Any:
        """Drops unsupported parameters that ask for nothing; raises for those that ask for something."""
        if not isinstance(raw, dict):
            return raw
        if unknown := raw.keys() - cls.model_fields.keys() - _REFUSED.keys():
            name = min(unknown, key=str)
            raise InvalidRequestError(f"{name[:80]!r} is not a parameter of this endpoint", param=name[:80])
        for name in raw.keys() & _REFUSED.keys():
            if not _asks_nothing(raw[name], _REFUSED[name]):
                raise InvalidRequestError(f"{name} is not supported: leave it out", param=name)
        return {name: value for name, value in raw.items() if name not in _REFUSED}


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class _Generation(_Request):
    """Parameters common to both generating endpoints. None means the default of `SamplingParams`."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    n: int | None = None
    stop: Unicode | list[Unicode] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Unicode | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> "_Generation":
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
        return self


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: Unicode


class Message(BaseModel):
    """One turn. `developer` is the newer name of `system`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Unicode | list[TextPart]

    def flat(self) -> dict[str, str]:
        """Role and text as chat templates take them."""
        text = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


Messages = Annotated[list[Message], Field(min_length=1)]


class ChatRequest(_Generation):
    messages: Messages
    max_completion_tokens: int | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise InvalidRequestError(
                    f"max_tokens is {self.max_tokens} and max_completion_tokens "
                    f"{self.max_completion_tokens}: give one of them",
                    param="max_completion_tokens",
                )
            self.max_tokens = self.max_completion_tokens
        return self


def _of_one_kind(prompt: Any) -> Any:
    """Refuses a long mixed list at once: pydantic would report every element against every form."""
    if isinstance(prompt, list) and len(kinds := set(map(type, prompt))) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"a list of {names} mixes kinds: give texts, token ids, or lists of token ids")
    return prompt


Prompt = Annotated[
    Unicode | list[Unicode] | TokenIds | list[TokenIds],
    BeforeValidator(_of_one_kind),
]


class CompletionRequest(_Generation):
    """`prompt` is one text, a list of texts, one list of token ids, or a list of such lists."""

    prompt: Prompt


class TokenizeRequest(_Request):
    """Exactly one of `prompt` (text) and `messages` (rendered with the chat template)."""

    prompt: Unicode | None = None
    messages: Messages | None = None
    add_special_tokens: bool = False


class DetokenizeRequest(_Request):
    tokens: TokenIds


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> "Usage":
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """Absent fields are left out rather than sent as null, because clients join what they get."""

    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer
    def _present(self) -> dict[str, str]:
        return {name: value for name, value in self if value is not None}


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class TextChoice(BaseModel):
    """Of a completion and of its chunks; only the last chunk of a choice has a finish_reason."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tessera"] = "tessera"
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(BaseModel):
    prompt: str


class Version(BaseModel):
    version: str
    model: str
    device: str
    kernels: list[str]
    weight_bytes: int
    cache_bytes: int


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    error: ErrorDetail


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Seconds since the epoch, as `created` fields have it."""
    return int(time.time())
