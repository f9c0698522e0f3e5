"""What is asked of a server, as far as arithmetic needs it: lengths, cached share, what matters."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, Literal

from tessera.planner.errors import UnknownWorkloadError
from tessera.planner.quantity import fraction, positive


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens a request, and what the operator wants of it. Raises PlanError for impossible numbers.

    prompt, output   tokens of a request; prompt counts what stands in the cache already
    prefix_hit       share of the prompt found in the prefix cache
    objective        throughput (price of a token) or latency (time per token at a small batch)
    batch            sequences decoded together; None: as many as memory holds
    """

    name: str
    prompt: int
    output: int
    prefix_hit: float = 0.0
    objective: Literal["throughput", "latency"] = "throughput"
    batch: int | None = None

    def __post_init__(self) -> None:
        positive(prompt=self.prompt, output=self.output)
        fraction(prefix_hit=self.prefix_hit)
        if self.batch is not None:
            positive(batch=self.batch)

    @property
    def context(self) -> int:
        """Tokens that a sequence has come to hold at its end: what memory must have room for."""
        return self.prompt + self.output

    @property
    def mean_context(self) -> float:
        """Tokens that an average step of its decoding attends to."""
        return self.prompt + self.output / 2

    @property
    def computed_prompt(self) -> float:
        """Prompt tokens that have to be computed."""
        return max(1.0, self.prompt * (1 - self.prefix_hit))

    @property
    def cached_prompt(self) -> float:
        """Prompt tokens found in the cache."""
        return self.prompt - self.computed_prompt


WORKLOADS: Final = MappingProxyType(
    {
        w.name: w
        for w in (
            Workload("chat", 1024, 512),
            Workload("rag", 8192, 256),
            Workload("agent", 32768, 128),
            Workload("batch", 1024, 1024),
            Workload("assistant", 1024, 512, objective="latency", batch=1),
        )
    }
)
"""chat: many users, short prompts; rag: long prompts that rarely repeat; agent: turns over a long transcript,
prefill far above decode; batch: offline generation; assistant: one user on one device."""


def workload_of(what: str | Workload, **changes: object) -> Workload:
    """A workload by name, with fields changed. Raises UnknownWorkloadError, PlanError."""
    if isinstance(what, str):
        if what not in WORKLOADS:
            near = get_close_matches(what, WORKLOADS, n=1)
            nearest = f"nearest: {near[0]}; " if near else ""
            raise UnknownWorkloadError(
                f"no workload {what!r}: {nearest}known: {', '.join(WORKLOADS)}; or give prompt and output",
                param="workload",
            )
        what = WORKLOADS[what]
    given = {key: value for key, value in changes.items() if value is not None}
    return replace(what, **given) if given else what  # type: ignore[arg-type]
