"""Microseconds of launches by replays of CUDA graphs, one after the other, and the card's state meanwhile."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

Launch = Callable[[], object]
REPLAYS: Final = 5
GRAPH_US: Final = 500.0
"""Length of a graph from which a replay's own start no longer shows."""
POWER_INSTANT: Final = 186
"""NVML_FI_DEV_POWER_INSTANT: milliwatts; other readings are means of a second."""
AHEAD_CYCLES: Final = 50_000
"""What the device does before a replay, so that the host has enqueued all of it by then."""


@dataclass(frozen=True)
class Timed:
    """A graph of `launches`, which keep what it reads: the next capture unmaps memory that nobody holds."""

    graph: torch.cuda.CUDAGraph
    launches: Sequence[Launch]

    def us(self) -> tuple[float, dict[str, int]]:
        """Microseconds a launch of one replay, and the card's state in it.

        Then the card rests as long as it worked: a second of replays without rests brings it to its power
        limit, and what is measured last would get the lowest clock.
        """
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(AHEAD_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        self.graph.replay()
        end.record()
        state = card_state()
        end.synchronize()
        milliseconds = start.elapsed_time(end)
        time.sleep(milliseconds / 1e3)
        return milliseconds * 1e3 / len(self.launches), state

    def sustained(self, seconds: float) -> "Reading":
        """The mean of a launch in the second half of `seconds` without rests, and clock and power there."""
        middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        once, _ = self.us()
        half = max(1, math.ceil(seconds / 2 * 1e6 / once / len(self.launches)))
        for i in range(2 * half):
            if i == half:
                middle.record()
            self.graph.replay()
        end.record()
        middle.synchronize()
        state = card_state()
        end.synchronize()
        return Reading(middle.elapsed_time(end) * 1e3 / half / len(self.launches), state)


@dataclass(frozen=True)
class Reading:
    """Median microseconds a launch; `card` is what `card_state` gave in the last replay."""

    us: float
    card: dict[str, int]


def graph_of(launches: Sequence[Launch], least_us: float) -> Timed:
    """The launches, each of `least_us` or more, repeated up to GRAPH_US."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    launches = list(launches) * math.ceil(GRAPH_US / least_us / len(launches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    torch.cuda.synchronize()
    return Timed(graph, launches)


def time_in_turn(timed: Sequence[Timed], replays: int = REPLAYS) -> list[Reading]:
    """A reading of each, the graphs replayed one after the other `replays` times."""
    rounds = [[one.us() for one in timed] for _ in range(replays)]
    return [
        Reading(statistics.median(us for us, _ in found), found[-1][1]) for found in zip(*rounds, strict=True)
    ]


@cache
def _nvml() -> tuple[Any, Any] | None:
    try:
        import pynvml
    except ImportError:
        return None
    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)


def card_state() -> dict[str, int]:
    """`sm_mhz` and `watts` now; empty where NVML is not there."""
    found = _nvml()
    if found is None:
        return {}
    nvml, card = found
    try:
        [power] = nvml.nvmlDeviceGetFieldValues(card, [POWER_INSTANT])
        clock = nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)
    except nvml.NVMLError:
        return {}
    return {"sm_mhz": clock, "watts": round(power.value.uiVal / 1000)}
