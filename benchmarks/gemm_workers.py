"""A process for each case of a benchmark: all prepare side by side, then one after the other measures.

Whatever a child dies of, or hangs in, costs the part or the step that it was at and not the run: a new child
goes on without it.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

CONTEXT: Final = multiprocessing.get_context("spawn")
PREPARE_S, MEASURE_S = 240.0, 40.0
"""How long a child may say nothing."""


@dataclass(frozen=True)
class Child:
    """What the process of a case is given: the steps to do, the parts to leave out, and how to report."""

    pipe: Connection
    case: Any
    steps: tuple[Any, ...]
    without: frozenset[str]

    def at(self, part: str, step: Any = None) -> None:
        """`part`, or all together if it is empty, are about to do `step`, or to be prepared."""
        self.pipe.send(("at", part, step))

    def ready(self) -> None:
        """Everything is prepared. Returns when this child may have the machine."""
        self.pipe.send(("ready",))
        self.pipe.recv()

    def done(self, step: Any, results: Sequence[Any]) -> None:
        self.pipe.send(("done", step, list(results)))

    def failed(self, part: str, step: Any, why: str) -> None:
        """`part` failed and the process goes on."""
        self.pipe.send(("failed", part, step, why))


@dataclass(frozen=True)
class Failure:
    """A part of a case that gave no result at `step` (None: when it was prepared)."""

    case: Any
    part: str
    step: Any
    why: str


Work = Callable[[Child], None]


class Worker:
    """The child of one case, started at once; a child that ends too early is replaced."""

    def __init__(
        self,
        work: Work,
        case: Any,
        steps: Sequence[Any],
        patience: tuple[float, float] = (PREPARE_S, MEASURE_S),
    ) -> None:
        self._work, self._case, self._patience = work, case, patience
        self._rest, self._without = tuple(steps), frozenset[str]()
        self._turn = False
        self._start()

    def _start(self) -> None:
        self._at: tuple[str, Any] = ("", None)
        self._prepared, self._running = False, True
        self._pipe, theirs = CONTEXT.Pipe()
        child = Child(theirs, self._case, self._rest, self._without)
        self._process = CONTEXT.Process(target=self._work, args=(child,), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self) -> Iterator[Failure]:
        """Ends when the child waits for the machine, or is gone for good."""
        yield from self._follow()

    def measure(self) -> Iterator[Any]:
        """Results, and failures, until the child has ended."""
        self._turn = True
        if self._running:
            self._pipe.send("go")
            yield from self._follow()

    def _follow(self) -> Iterator[Any]:
        while (heard := self._receive())[0] != "gone":
            match heard:
                case ("at", part, step):
                    self._at = part, step
                case ("failed", *what):
                    yield Failure(self._case, *what)
                case ("done", step, results):
                    self._rest = self._rest[self._rest.index(step) + 1 :]
                    yield from results
                case ("ready",):
                    self._prepared = True
                    if not self._turn:
                        return
                    self._pipe.send("go")
        self._running = False
        if heard[1]:
            yield from self._replace(heard[1])

    def _replace(self, why: str) -> Iterator[Any]:
        part, step = self._at
        yield Failure(self._case, part, step, why)
        if part:
            self._without |= {part}
        elif step in self._rest:
            self._rest = self._rest[self._rest.index(step) + 1 :]
        else:
            return
        self._start()
        yield from self._follow()

    def _receive(self) -> tuple[Any, ...]:
        """What the child says; ("gone", why) where it has ended, `why` empty where that was in order."""
        patience = self._patience[self._prepared]
        try:
            if self._pipe.poll(patience):
                return tuple(self._pipe.recv())
            self._process.kill()
            why = f"no answer in {patience:.0f} s"
        except (EOFError, OSError):
            why = ""
        self._process.join()
        code = self._process.exitcode
        return ("gone", why or (f"process ended with {code}" if code else ""))


def run(workers: Sequence[Worker]) -> Iterator[Any]:
    """Results of all, in order, and failures as they become known."""
    for worker in workers:
        yield from worker.prepare()
    for worker in workers:
        yield from worker.measure()
