"""How one request chooses its tokens and when it stops."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.errors import InvalidRequestError

MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 256
MAX_STOP_TOKENS: Final = 64
SEED_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request, checked when made.

    max_tokens       at most this many new tokens; None: until the context is full
    temperature      logits are divided by it; 0 is greedy
    top_k            keep the k most probable tokens; 0 keeps all
    top_p            then keep the fewest most probable tokens whose probabilities reach this sum
    seed             the same seed and prompt give the same tokens, whatever else is in the batch;
                     None draws fresh entropy
    stop             strings that end the text; not part of it. A bare string counts as one
    stop_token_ids   tokens that end the text like the model's own end-of-sequence tokens
    ignore_eos       go on after the model's end-of-sequence tokens

    Raises InvalidRequestError naming the parameter.
    """

    max_tokens: int | None = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _tuple("stop", stop))
        object.__setattr__(self, "stop_token_ids", _tuple("stop_token_ids", self.stop_token_ids))
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, at_least=1)
        _number("temperature", self.temperature, lambda t: t >= 0, "0 or more")
        _integer("top_k", self.top_k, at_least=0)
        _number("top_p", self.top_p, lambda p: 0 < p <= 1, "above 0 and at most 1")
        if self.seed is not None:
            _integer("seed", self.seed, at_least=-(2 ** (SEED_BITS - 1)))
            if self.seed >= 2**SEED_BITS:
                raise InvalidRequestError(f"seed is {self.seed}: it must fit in {SEED_BITS} bits", "seed")
        _check_stop_strings(self.stop)
        _check_stop_tokens(self.stop_token_ids)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(f"ignore_eos is {self.ignore_eos!r}: true or false", "ignore_eos")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _tuple(name: str, values: object) -> tuple[object, ...]:
    if not isinstance(values, list | tuple):
        raise InvalidRequestError(f"{name} is {values!r}: it must be a list", name)
    return tuple(values)


def _integer(name: str, value: object, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidRequestError(f"{name} is {value!r}: it must be an integer of at least {at_least}", name)


def _number(name: str, value: object, allowed: Callable[[float], bool], range_: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not allowed(value):  # type: ignore[arg-type]
        raise InvalidRequestError(f"{name} is {value!r}: it must be a finite number, {range_}", name)


def _check_stop_strings(stop: Sequence[str]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop has {len(stop)} strings: at most {MAX_STOP_STRINGS} are allowed", "stop"
        )
    for text in stop:
        if not isinstance(text, str):
            raise InvalidRequestError(f"stop holds {text!r}: it must hold strings", "stop")
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise InvalidRequestError(
                f"stop holds a string of {len(text)} characters: 1 to {MAX_STOP_LENGTH} are allowed", "stop"
            )


def _check_stop_tokens(ids: Sequence[int]) -> None:
    name = "stop_token_ids"
    if len(ids) > MAX_STOP_TOKENS:
        raise InvalidRequestError(f"{name} has {len(ids)} ids: at most {MAX_STOP_TOKENS} are allowed", name)
    for token in ids:
        _integer(name, token, at_least=0)
