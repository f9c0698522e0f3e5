"""One request on its way through the engine, and what comes back from it."""

import time
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from tessera.engine.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a request ended. Every accepted request gets exactly one."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens reached or context full
    ABORT = "abort"  # the caller gave up
    ERROR = "error"  # the engine failed; the text of the failure is beside it


class RequestState(Enum):
    WAITING = "waiting"  # not admitted yet, or preempted: owns no blocks
    RUNNING = "running"  # admitted: owns the blocks of its block table
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one request. The last one of a request carries `finish_reason`.

    `text` never ends in half a character or in what may become a stop string, so it can be empty while
    `token_ids` is not. Texts of all deltas joined are the text of the request.

    stop_reason  the stop string or the token id that ended it, where finish_reason is stop
    error        what went wrong, where finish_reason is error
    num_output_tokens  new tokens so far, this delta's included
    num_cached_tokens  tokens of the prompt whose K and V were found in the cache
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: all of its deltas together. `prompt` is None where ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None
    num_cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """Scheduling state of one request. Only the scheduler and its block pool change it.

    token_ids            prompt, then every sampled token
    num_computed_tokens  tokens whose K and V are in the cache
    num_cached_tokens    how many of them were found there when it was first admitted
    block_table          blocks that hold them, in order, 64 tokens each
    block_hashes         hashes of its full blocks, as far as they were needed; known tokens never change
    num_kept_blocks      blocks of the table that others can find, or need not
    max_total_tokens     prompt and output together may not exceed it; set at admission to the queue
    """

    id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_kept_blocks: int = 0
    max_total_tokens: int = 0
    arrival_time: float = field(default_factory=time.monotonic)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens but a last one that is a placeholder (below 0) for what a step in flight draws."""
        return len(self.token_ids) - (self.token_ids[-1] < 0)

    @property
    def awaits_last_token(self) -> bool:
        """Whether nothing is left to compute: a token of a step in flight ends the request."""
        return len(self.token_ids) >= self.max_total_tokens > 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens
