"""One replica under traffic: continuous batching as a discrete-event simulation.

The clock jumps from one change of the batch to the next: between two of them every sequence gains a token a
step and the step time is taken at the middle of the contexts passed, which is exact where it is linear in
them. A request costs two jumps whatever its length, so thousands of requests take a fraction of a second.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tessera.planner.arrivals import Arrival
from tessera.planner.errors import PlanError, UnreachableError


@dataclass(frozen=True, slots=True)
class Replica:
    """What serves requests: one GPU, or `gpus` that share a model.

    step_s(batch, mean context in tokens) -> seconds of a decode step; prefill_s(prompt tokens) -> seconds;
    kv_tokens that the cache holds; at most max_batch sequences at once. Waiting prompts are taken first come,
    first served, up to prefill_tokens of them between two decode steps (a longer prompt alone).
    """

    step_s: Callable[[int, float], float]
    prefill_s: Callable[[int], float]
    kv_tokens: int
    max_batch: int = 256
    prefill_tokens: int = 8192
    gpus: int = 1

    def __post_init__(self) -> None:
        if min(self.kv_tokens, self.max_batch, self.prefill_tokens, self.gpus) < 1:
            raise PlanError(
                f"a replica with {self.kv_tokens} tokens of KV, batch {self.max_batch}, "
                f"{self.prefill_tokens} prefill tokens and {self.gpus} GPUs: each must be at least 1"
            )


@dataclass(frozen=True, slots=True)
class Served:
    """A finished request: seconds on the simulation's clock, and its tokens."""

    arrival: Arrival
    first_token: float
    finished: float

    @property
    def ttft_s(self) -> float:
        return self.first_token - self.arrival.time

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first; 0 where there is only one."""
        return (self.finished - self.first_token) / max(1, self.arrival.output - 1)


@dataclass(slots=True)
class Run:
    """Everything that finished, in that order, and sums over the time from the first arrival to the end.

    busy_s: seconds of prefill and decode; request_s: integral of the number of requests in the system;
    steps: decode steps; decoded: tokens of them.
    """

    served: list[Served] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = 0.0
    busy_s: float = 0.0
    request_s: float = 0.0
    steps: int = 0
    decoded: int = 0
    peak_kv_tokens: int = 0


def simulate(replica: Replica, arrivals: Iterable[Arrival]) -> Run:
    """Serves all `arrivals`, in order of time. A request holds room for all its tokens once it is admitted.

    Raises UnreachableError for a request that the cache could never hold.
    """
    return _Simulation(replica, arrivals).run()


class _Simulation:
    def __init__(self, replica: Replica, arrivals: Iterable[Arrival]) -> None:
        self._replica = replica
        self._coming = deque(arrivals)
        self._waiting: deque[Arrival] = deque()
        self._running: list[tuple[int, int, float, Arrival]] = []
        """Heap of (step after which it ends, a tie-breaker, time of the first token, request)."""
        self._clock = 0.0
        self._step = 0
        self._held = 0
        self._context = 0
        """Sum over running requests of tokens in the cache, less the batch times the step counter."""
        self._admitted = 0
        self._run = Run()

    def run(self) -> Run:
        if self._coming:
            self._clock = self._run.start_s = self._coming[0].time
        while self._coming or self._waiting or self._running:
            if not self._waiting and not self._running:
                self._advance(max(self._clock, self._coming[0].time), busy=False)
            self._receive()
            self._prefill()
            if self._running:
                self._decode()
        self._run.end_s = self._clock
        return self._run

    def _advance(self, time: float, busy: bool = True) -> None:
        """Moves the clock; requests that arrive on the way count from their arrival on."""
        self._run.request_s += (len(self._waiting) + len(self._running)) * (time - self._clock)
        if busy:
            self._run.busy_s += time - self._clock
        self._clock = time

    def _receive(self) -> None:
        while self._coming and self._coming[0].time <= self._clock:
            arrival = self._coming.popleft()
            if arrival.prompt + arrival.output > self._replica.kv_tokens:
                raise UnreachableError(
                    f"a request of {arrival.prompt} + {arrival.output} tokens exceeds the "
                    f"{self._replica.kv_tokens} tokens of KV cache of a replica: a smaller recipe, more "
                    "memory or tensor parallelism is needed"
                )
            self._run.request_s += self._clock - arrival.time
            self._waiting.append(arrival)

    def _admissible(self) -> bool:
        return bool(
            self._waiting
            and len(self._running) < self._replica.max_batch
            and self._held + self._waiting[0].prompt + self._waiting[0].output <= self._replica.kv_tokens
        )

    def _prefill(self) -> None:
        """One prefill pass over as many waiting prompts as fit; each has its first token at its end."""
        taken: list[Arrival] = []
        tokens, seconds = 0, 0.0
        while self._admissible() and len(self._running) + len(taken) < self._replica.max_batch:
            if taken and tokens + self._waiting[0].prompt > self._replica.prefill_tokens:
                break
            arrival = self._waiting.popleft()
            taken.append(arrival)
            tokens += arrival.prompt
            seconds += self._replica.prefill_s(arrival.prompt)
            self._held += arrival.prompt + arrival.output
        if not taken:
            return
        self._run.peak_kv_tokens = max(self._run.peak_kv_tokens, self._held)
        self._waiting.extendleft(reversed(taken))  # they are in the system while they are computed
        self._advance(self._clock + seconds)
        for arrival in taken:
            self._waiting.popleft()
            self._admitted += 1
            if arrival.output == 1:
                self._finish(arrival, self._clock)
                continue
            self._context += arrival.prompt - self._step
            entry = (self._step + arrival.output - 1, self._admitted, self._clock, arrival)
            heapq.heappush(self._running, entry)

    def _decode(self) -> None:
        """Steps until a request ends or the next one can be taken in, at least one."""
        batch = len(self._running)
        context = self._context / batch + self._step
        steps = self._running[0][0] - self._step
        if self._admissible():
            steps = 1
        elif self._coming and not self._waiting:
            time = self._coming[0].time - self._clock
            guess = time / self._replica.step_s(batch, context)
            if guess < steps:
                steps = max(1, min(steps, math.ceil(time / self._replica.step_s(batch, context + guess / 2))))
        self._advance(self._clock + steps * self._replica.step_s(batch, context + (steps + 1) / 2))
        self._step += steps
        self._run.steps += steps
        self._run.decoded += steps * batch
        while self._running and self._running[0][0] <= self._step:
            _, _, first, arrival = heapq.heappop(self._running)
            self._context -= arrival.prompt - (self._step - arrival.output + 1)
            self._finish(arrival, first)

    def _finish(self, arrival: Arrival, first_token: float) -> None:
        self._held -= arrival.prompt + arrival.output
        self._run.served.append(Served(arrival, first_token, self._clock))
