"""The smallest fleet that keeps a promise on latency, found by simulating one of its replicas.

A router that deals requests out in turn makes replicas independent and alike, so what a request meets in a
fleet of thousands is seen on one replica that gets every n-th of them; the answer takes a second or so
whatever its size. A router that knows loads does no worse, so this is a fleet that suffices.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tessera.planner.arrivals import Arrival, Arrivals, Trace
from tessera.planner.errors import PlanError, UnreachableError
from tessera.planner.replica import Replica, Run, Served, simulate

MEASURED: Final = 4000
"""Requests whose latency counts, at each size of fleet tried."""
MAX_REPLICAS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token and per token after it that `share` of requests must keep; None is free."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    share: float = 0.95

    def __post_init__(self) -> None:
        for name, value in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s)):
            if value is not None and not 0 < value < math.inf:
                raise PlanError(f"a {name} of {value} s: a positive number is needed")
        if not 0 < self.share < 1:
            raise PlanError(f"a share of {self.share} of requests: a number between 0 and 1 is needed")


@dataclass(frozen=True, slots=True)
class Level:
    """A fleet under its traffic. ttft_s and tpot_s are those that the SLO's share of requests keeps.

    load: share of the time that replicas compute. saturation: request rate over the most it could serve.
    """

    replicas: int
    gpus: int
    ttft_s: float
    tpot_s: float
    mean_batch: float
    load: float
    saturation: float
    meets: bool


@dataclass(frozen=True, slots=True)
class Fleet:
    """The answer: `smallest` that meets the SLO, and every size that was tried, by size."""

    slo: Slo
    rate: float
    smallest: Level
    tried: tuple[Level, ...]


def size_fleet(replica: Replica, arrivals: Arrivals, slo: Slo, seed: int = 0) -> Fleet:
    """Fewest replicas that serve `arrivals` within `slo`; the same arguments give the same answer.

    Raises UnreachableError where a request alone on a replica misses the SLO already, or never fits.
    """
    _check_alone(replica, arrivals, slo, seed)
    most = saturated_rate(replica, arrivals, seed)
    lower = max(1, math.ceil(arrivals.rate / most)) if math.isfinite(arrivals.rate) else 1
    tried: dict[int, Level] = {}

    def meets(replicas: int) -> bool:
        if replicas not in tried:
            tried[replicas] = level(replica, arrivals, slo, replicas, most, seed)
        return tried[replicas].meets

    upper = lower
    while not meets(upper):
        if upper > MAX_REPLICAS:
            raise UnreachableError(f"{upper} replicas still miss the SLO: relax it")
        lower, upper = upper + 1, 2 * upper
    while lower < upper:
        middle = (lower + upper) // 2
        if meets(middle):
            upper = middle
        else:
            lower = middle + 1
    return Fleet(slo, arrivals.rate, tried[upper], tuple(tried[n] for n in sorted(tried)))


def level(
    replica: Replica, arrivals: Arrivals, slo: Slo, replicas: int, most: float = math.inf, seed: int = 0
) -> Level:
    """`arrivals` on `replicas` replicas, of which each could serve `most` requests a second."""
    runs, warm = _sample(replica, arrivals, replicas, seed)
    served = [request for run in runs for request in run.served[warm:]]
    ttft = quantile([request.ttft_s for request in served], slo.share)
    tpot = quantile([request.tpot_s for request in served], slo.share)
    saturation = arrivals.rate / replicas / most
    kept = (slo.ttft_s is None or ttft <= slo.ttft_s) and (slo.tpot_s is None or tpot <= slo.tpot_s)
    steps = sum(run.steps for run in runs)
    return Level(
        replicas=replicas,
        gpus=replicas * replica.gpus,
        ttft_s=ttft,
        tpot_s=tpot,
        mean_batch=sum(run.decoded for run in runs) / steps if steps else 0.0,
        load=sum(run.busy_s for run in runs) / sum(run.end_s - run.start_s for run in runs),
        saturation=saturation,
        meets=kept and (saturation <= 1 or isinstance(arrivals, Trace)),
    )


def saturated_rate(replica: Replica, arrivals: Arrivals, seed: int = 0) -> float:
    """Requests a second that one replica serves when there are always more waiting."""
    stream = arrivals.of_replica(1, seed)
    count = _warm_up(replica, arrivals) + MEASURED
    flood = [Arrival(0.0, request.prompt, request.output) for request in itertools.islice(stream, count)]
    ends = [request.finished for request in simulate(replica, flood).served]
    first, last = (
        len(ends) // 4,
        (3 * len(ends)) // 4,
    )  # neither the start, where all have just begun, nor the end
    duration = ends[last] - ends[first]
    return (last - first) / duration if duration > 0 else len(ends) / ends[-1]


def quantile(values: Sequence[float], share: float) -> float:
    """Smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def rate_of_users(users: int, think_s: float, alone_s: float) -> float:
    """Requests a second of users who each ask again `think_s` after an answer.

    `alone_s` is how long an answer takes on an idle replica: the least, so the rate is the most.
    """
    if users < 1 or think_s < 0 or alone_s <= 0:
        raise PlanError(f"{users} users who think {think_s} s: at least one user and no negative time")
    return users / (think_s + alone_s)


def alone_s(replica: Replica, prompt: int, output: int) -> float:
    """Seconds of one request on an idle replica."""
    return simulate(replica, [Arrival(0.0, prompt, output)]).end_s


def _sample(replica: Replica, arrivals: Arrivals, replicas: int, seed: int) -> tuple[list[Run], int]:
    """Enough replicas for MEASURED requests, and how many of the first of each run do not count.

    A distribution has no end: one replica is seen for as long as it takes, after a warm-up. A trace starts
    on an idle fleet and counts whole, on as many of its replicas as it takes.
    """
    if not isinstance(arrivals, Trace):
        warm = _warm_up(replica, arrivals)
        stream = itertools.islice(arrivals.of_replica(replicas, seed), warm + MEASURED)
        return [simulate(replica, stream)], warm
    share = max(1, len(arrivals.requests) // replicas)
    wanted = min(replicas, len(arrivals.requests), math.ceil(MEASURED / share))
    stride = max(1, replicas // wanted)
    return [simulate(replica, arrivals.of_replica(replicas, i * stride)) for i in range(wanted)], 0


def _warm_up(replica: Replica, arrivals: Arrivals) -> int:
    """Twice the requests that a full replica holds."""
    some = list(itertools.islice(arrivals.of_replica(1, 0), 100))
    mean = sum(request.prompt + request.output for request in some) / len(some)
    return 2 * min(replica.max_batch, max(1, int(replica.kv_tokens / mean)))


def _check_alone(replica: Replica, arrivals: Arrivals, slo: Slo, seed: int) -> None:
    """More replicas help against waiting, not against the time of a request alone."""
    served: list[Served] = []
    for request in itertools.islice(arrivals.of_replica(1, seed), 200):
        served += simulate(replica, [Arrival(0.0, request.prompt, request.output)]).served
    for name, limit, values in (
        ("TTFT", slo.ttft_s, [request.ttft_s for request in served]),
        ("TPOT", slo.tpot_s, [request.tpot_s for request in served]),
    ):
        if limit is not None and (best := quantile(values, slo.share)) > limit:
            raise UnreachableError(
                f"{name} of {1e3 * limit:.4g} ms for {slo.share:.0%} of requests: one alone on a replica "
                f"takes {1e3 * best:.4g} ms already, so no number of GPUs keeps it: a smaller recipe, a "
                "faster GPU or tensor parallelism is needed"
            )
