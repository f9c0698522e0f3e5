"""Qtile propagation search (QFactory section 4.1, Algorithm 1, seed 002).

Breadth first from the eager graph: every operation with a Qtile among its arguments is replaced by what the
tables say it equals, which carries Qtiles towards the output. Graphs are compared in canonical form.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tessera.compiler.canonical import Canonical
from tessera.compiler.graph import QGraph
from tessera.compiler.ops import cast
from tessera.compiler.rules import Refusal, transformations
from tessera.spec import Float

MAX_CANDIDATES: Final = 2000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph equal to the eager one, and the rows that lead there on a shortest way."""

    graph: QGraph
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Propagation:
    """Result of the search: candidates in breadth-first order, the eager graph first.

    `complete` is false where the budget ended it with `pending` graphs not yet expanded. `refusals` are the
    distinct reasons why operations stayed as they are. `generated` counts graphs before duplicates were
    dropped.
    """

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]
    complete: bool
    pending: int
    generated: int
    seconds: float

    @property
    def eager(self) -> QGraph:
        return self.candidates[0].graph

    def __str__(self) -> str:
        end = "complete" if self.complete else f"stopped by the budget, {self.pending} graphs not expanded"
        return f"{len(self.candidates)} graphs of {self.generated} generated in {self.seconds:.2f} s, {end}"


def propagate(graph: QGraph, max_candidates: int = MAX_CANDIDATES) -> Propagation:
    """Every equivalent QGraph, or the first `max_candidates`, of which the eager one is always the first.

    The order depends on the program alone.
    """
    start = time.perf_counter()
    canonical = Canonical()
    eager = _typed(graph, graph, canonical)
    found = {eager.key: Candidate(eager)}
    queue = deque(found.values())
    refusals: dict[Refusal, None] = {}
    generated = 1
    complete = True
    while queue and complete:
        current = queue.popleft()
        for new in _successors(current, canonical, refusals):
            generated += 1
            if new.graph.key in found:
                continue
            if len(found) >= max_candidates:
                complete = False
                break
            found[new.graph.key] = new
            queue.append(new)
    return Propagation(
        tuple(found.values()),
        tuple(refusals),
        complete,
        len(queue) + (not complete),
        generated,
        time.perf_counter() - start,
    )


def _successors(
    candidate: Candidate, canonical: Canonical, refusals: dict[Refusal, None]
) -> Iterator[Candidate]:
    """The candidate after every single step; what cannot be a step goes to `refusals`."""
    for node in candidate.graph.nodes:
        for outcome in transformations(node):
            if isinstance(outcome, Refusal):
                refusals[outcome] = None
                continue
            graph = candidate.graph.replace(outcome.old, outcome.node)
            yield Candidate(_typed(graph, candidate.graph, canonical), (*candidate.rows, outcome.row))


def _typed(graph: QGraph, like: QGraph, canonical: Canonical) -> QGraph:
    """Canonical form with the float types of the outputs of `like`, whatever types rules compute in."""
    outputs = zip(canonical.graph(graph).outputs, like.outputs, strict=True)
    typed = (cast(new, old.dtype) if isinstance(old.dtype, Float) else new for new, old in outputs)
    return canonical.graph(QGraph(tuple(typed)))
