"""Which tokens of which requests the next step computes.

Continuous batching (Orca, OSDI 2022) over paged KV blocks (vLLM, SOSP 2023) with chunked prefill mixed into
decode steps (Sarathi-Serve, OSDI 2024), under a token budget.

Running requests are kept in the order they were admitted. Only the last of them can be in the middle of its
prefill: a prompt is cut only where the budget ends, and then nothing more is admitted. So going through them
in order serves decodes first. When blocks run out, the request admitted last gives all of its blocks back and
waits at the head of the queue, to be computed again from its tokens.

Full blocks stay findable by the hash of their tokens and everything before (automatic prefix caching): a
request begins after the blocks that are there already. Since a token always attends to K and V as the cache
stores them, this changes no result.
"""

from collections import deque
from dataclasses import dataclass

from tessera.engine.block_pool import BLOCK_SIZE, BlockPool, block_hash, blocks_for
from tessera.engine.errors import SchedulerStalledError
from tessera.engine.request import Request, RequestState
from tessera.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """Tokens start .. start + count - 1 of one request, computed in one step."""

    request: Request
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the request's last known token, and so yields the next one."""
        return self.start + self.count == self.request.num_tokens


class Scheduler:
    """Queues and block tables. `schedule`, compute, `advance`, then `finish` what ended; one thread."""

    def __init__(
        self,
        pool: BlockPool,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool = True,
    ) -> None:
        self.pool = pool
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefix_caching = prefix_caching
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def max_total_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Longest that a request may become, prompt included.

        Raises InvalidRequestError if its prompt leaves no room for one token, or its blocks exceed the pool.
        """
        if num_prompt_tokens + 1 > self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {num_prompt_tokens} tokens: with one new token that exceeds the context of "
                f"{self.max_model_len}; shorten the prompt or raise max_model_len",
                "prompt",
            )
        total = self.max_model_len
        if max_tokens is not None:
            total = min(total, num_prompt_tokens + max_tokens)
        # The last token is returned, never computed on: it needs no room in the cache.
        if blocks_for(total - 1) > self.pool.num_blocks:
            raise InvalidRequestError(
                f"{num_prompt_tokens} prompt tokens and {total - num_prompt_tokens} new ones need "
                f"{blocks_for(total - 1)} blocks of the KV cache, which has {self.pool.num_blocks}; "
                "ask for fewer tokens or raise kv_tokens",
                "max_tokens",
            )
        return total

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequestError where `max_total_tokens` does."""
        request.max_total_tokens = self.max_total_tokens(
            request.num_prompt_tokens, request.sampling.max_tokens
        )
        self.waiting.append(request)

    def schedule(self) -> list[ScheduledTokens]:
        """The next step, at most `max_num_batched_tokens` tokens. Blocks for them are allocated.

        Raises SchedulerStalledError if requests are unfinished and none can go on.
        """
        step = self._schedule_running()
        # What was preempted just now is first in the queue and cannot be back at once: the blocks it gave up
        # were one too few for another, which has some of them.
        self._admit(step)
        awaited = any(request.awaits_last_token for request in self.running)
        if not step and self.has_unfinished and not awaited:
            raise SchedulerStalledError(
                f"{len(self.waiting)} waiting and {len(self.running)} running requests, {self.pool.num_free} "
                f"of {self.pool.num_blocks} blocks free, and nothing can be scheduled"
            )
        return step

    def _schedule_running(self) -> list[ScheduledTokens]:
        step: list[ScheduledTokens] = []
        budget = self.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            index += 1
            if request.awaits_last_token:
                continue
            count = min(request.num_pending_tokens, budget)
            if not self._grow(request, request.num_computed_tokens + count):
                break  # preempted itself: it was the last
            step.append(ScheduledTokens(request, request.num_computed_tokens, count))
            budget -= count
        return step

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Make the request's table hold `num_tokens`, preempting from the tail; False if it fell itself."""
        missing = blocks_for(num_tokens) - len(request.block_table)
        while missing > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            request.block_table += self.pool.allocate(missing)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        request.state = RequestState.WAITING
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def _admit(self, step: list[ScheduledTokens]) -> None:
        """Admit waiting requests in order while budget, sequences and blocks for their tokens last."""
        budget = self.max_num_batched_tokens - sum(tokens.count for tokens in step)
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self._fill_table(request):
                return
            self.waiting.popleft()
            request.state = RequestState.RUNNING
            self.running.append(request)
            count = min(request.num_pending_tokens, budget)
            step.append(ScheduledTokens(request, request.num_computed_tokens, count))
            budget -= count

    def _fill_table(self, request: Request) -> bool:
        """Give a request blocks for all of its tokens, those found first; False if there are too few.

        All of a prompt's blocks at once: a prefill cut into chunks cannot starve half-way.
        """
        found = self._find_prefix(request)
        missing = blocks_for(request.num_tokens) - len(found)
        if missing + sum(self.pool.is_free(block) for block in found) > self.pool.num_free:
            return False
        self.pool.take(found)
        request.block_table = found + self.pool.allocate(missing)
        request.num_kept_blocks = len(found)
        request.num_computed_tokens = len(found) * BLOCK_SIZE
        if request.first_scheduled_time is None:
            request.num_cached_tokens = request.num_computed_tokens
        return True

    def _find_prefix(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of a request already; at least its last token stays to compute."""
        found: list[int] = []
        if self.prefix_caching:
            for index in range((request.num_tokens - 1) // BLOCK_SIZE):
                block = self.pool.find(_hash(request, index))
                if block is None:
                    break
                found.append(block)
        return found

    def advance(self, step: list[ScheduledTokens]) -> None:
        """Note that the tokens of `step` are in the cache now, and let others find the blocks they filled."""
        for tokens in step:
            request = tokens.request
            request.num_computed_tokens += tokens.count
            if self.prefix_caching:
                self._keep_full_blocks(request)

    def _keep_full_blocks(self, request: Request) -> None:
        full = min(request.num_computed_tokens, request.num_known_tokens) // BLOCK_SIZE
        for index in range(request.num_kept_blocks, full):
            self.pool.keep(request.block_table[index], _hash(request, index))
        request.num_kept_blocks = max(request.num_kept_blocks, full)

    def finish(self, request: Request) -> None:
        """Take a request out, whatever its state, and free its blocks."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.WAITING:
            self.waiting.remove(request)
        request.state = RequestState.FINISHED
        self._release(request)

    def _release(self, request: Request) -> None:
        self.pool.release(request.block_table)
        request.block_table = []

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless free + held blocks equal the pool, each counted right."""
        self.pool.check_integrity(request.block_table for request in self.running)


def _hash(request: Request, index: int) -> bytes:
    """Hash of the request's full block `index`, and of those before it where they are missing."""
    hashes = request.block_hashes
    while len(hashes) <= index:
        begin = len(hashes) * BLOCK_SIZE
        before = hashes[-1] if hashes else b""
        hashes.append(block_hash(before, request.token_ids[begin : begin + BLOCK_SIZE]))
    return hashes[index]
