"""Requests as they come in: drawn from a distribution, or read from a trace file."""

import csv
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from tessera.planner.errors import PlanError, TraceError

FIELDS: Final = ("arrival_s", "prompt_tokens", "output_tokens")
"""What a row of a trace file holds; other columns are ignored."""
SHOWN_ROWS: Final = 5
"""Bad rows of a trace file that an error names."""

ArrivalKind = Literal["poisson", "bursty", "constant"]
GAP_CV: Final[Mapping[str, float]] = {"poisson": 1.0, "bursty": 3.0, "constant": 0.0}
"""Standard deviation of the time between two arrivals of a fleet, over its mean."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, in seconds, and its tokens."""

    time: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a request: log-normal with this mean and coefficient of variation (0: fixed), at least 1."""

    mean: float
    cv: float = 0.0

    def __post_init__(self) -> None:
        if self.mean < 1 or self.cv < 0 or not math.isfinite(self.mean + self.cv):
            raise PlanError(f"lengths of mean {self.mean} and cv {self.cv}: mean >= 1 and cv >= 0 needed")

    def draw(self, generator: random.Random) -> int:
        if self.cv == 0:
            return round(self.mean)
        variance = math.log1p(self.cv**2)
        return max(
            1, round(generator.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance)))
        )


class Arrivals(Protocol):
    """What reaches one replica of a fleet whose router deals requests out in turn."""

    @property
    def rate(self) -> float:
        """Requests a second that reach the whole fleet."""
        ...

    def of_replica(self, replicas: int, seed: int) -> Iterator[Arrival]:
        """Arrivals, in order of time, at one of `replicas`; another seed is another one."""
        ...


@dataclass(frozen=True, slots=True)
class Renewals:
    """Independent gaps: exponential (poisson), gamma with cv 3 (bursty) or equal (constant); without end.
    Lengths drawn are cut so that no request exceeds `longest` tokens, as a server cuts them.

    Every n-th arrival of a stream with gamma gaps of shape k has gamma gaps of shape n k, so a replica's
    stream costs the same to draw in a fleet of two and of thousands.
    """

    rate: float
    prompt: Lengths
    output: Lengths
    kind: ArrivalKind = "poisson"
    longest: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise PlanError(f"{self.rate} requests a second: a positive number is needed")
        if self.prompt.mean + self.output.mean > self.longest:
            raise PlanError(
                f"a mean request of {self.prompt.mean} + {self.output.mean} exceeds {self.longest} tokens"
            )

    def of_replica(self, replicas: int, seed: int) -> Iterator[Arrival]:
        # Apart, so that every kind and size of fleet meets the same lengths.
        gaps, lengths = random.Random(f"gaps {seed}"), random.Random(f"lengths {seed}")
        gap, cv = replicas / self.rate, GAP_CV[self.kind]
        shape = replicas / cv**2 if cv else 0.0
        time = 0.0
        while True:
            time += gaps.gammavariate(shape, gap / shape) if cv else gap
            prompt, output = self.prompt.draw(lengths), self.output.draw(lengths)
            prompt = int(min(prompt, self.longest - self.output.mean))
            yield Arrival(time, prompt, int(min(output, self.longest - prompt)))


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded requests in order of time; `of_replica` deals them out in turn."""

    requests: tuple[Arrival, ...]

    @property
    def rate(self) -> float:
        duration = self.requests[-1].time - self.requests[0].time
        return (len(self.requests) - 1) / duration if duration else math.inf

    def of_replica(self, replicas: int, seed: int) -> Iterator[Arrival]:
        return iter(self.requests[seed % replicas :: replicas])


def read_trace(path: Path) -> Trace:
    """A trace from a file of CSV (first line: names of columns) or JSONL (suffix .jsonl).

    Raises TraceError naming the lines that are wrong, or OSError.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    rows = _jsonl(text) if path.suffix == ".jsonl" else _csv(path, text)
    found: list[Arrival] = []
    wrong: list[str] = []
    for line, row in rows:
        try:
            found.append(_arrival(row))
        except ValueError as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        rest = f"\n  and {len(wrong) - SHOWN_ROWS} more" if len(wrong) > SHOWN_ROWS else ""
        listed = "".join(f"\n  {text}" for text in wrong[:SHOWN_ROWS])
        raise TraceError(f"{path}: {len(wrong)} of {len(wrong) + len(found)} rows are wrong:{listed}{rest}")
    if len(found) < 2:
        raise TraceError(f"{path}: {len(found)} requests; a trace needs at least two")
    return Trace(tuple(sorted(found, key=lambda arrival: arrival.time)))


def _csv(path: Path, text: str) -> Iterator[tuple[int, object]]:
    reader = csv.DictReader(text.splitlines())
    if missing := set(FIELDS) - set(reader.fieldnames or ()):
        raise TraceError(
            f"{path}: line 1, with the columns' names, lacks {', '.join(sorted(missing))}; "
            f"needed: {','.join(FIELDS)}"
        )
    for row in reader:
        yield reader.line_num, row


def _jsonl(text: str) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


def _arrival(row: object) -> Arrival:
    """Raises ValueError saying what is wrong with the row."""
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a finding about a file, not a wrong call
    time, prompt, output = (_number(row, name) for name in FIELDS)
    if time < 0:
        raise ValueError(f"arrival_s is {time:g}: seconds from 0 on are needed")
    for name, tokens in zip(FIELDS[1:], (prompt, output), strict=True):
        if tokens < 1 or tokens % 1:
            raise ValueError(f"{name} is {tokens:g}: whole tokens from 1 on are needed")
    return Arrival(time, int(prompt), int(output))


def _number(row: Mapping[str, object], name: str) -> float:
    value = row.get(name)
    if value is None:
        raise ValueError(f"{name} is missing")
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}")
    return number
