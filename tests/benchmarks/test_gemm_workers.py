"""Children that die, hang or fail cost the part or the step they were at; the others' results arrive."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = ("a", "b", "c")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gemm_workers

    return gemm_workers


def work(child: Any, disturb: Callable[[str, Any], None], early: bool = False) -> None:
    """Results are (case, step, part); `disturb` sees each part before its step, or when it is prepared."""
    parts = [part for part in PARTS if part not in child.without]
    for part in parts:
        child.at(part)
        if early:
            disturb(part, None)
    child.ready()
    for step in child.steps:
        results = []
        for part in parts:
            child.at(part, step)
            disturb(part, step)
            results.append((child.case, step, part))
        child.at("", step)
        disturb("", step)
        child.done(step, results)


def dies_in_preparation(child: Any) -> None:
    work(child, lambda part, step: os._exit(3) if (part, step) == ("b", None) else None, early=True)


def dies(child: Any) -> None:
    work(child, lambda part, step: os._exit(4) if (part, step) == ("b", 2) else None)


def hangs(child: Any) -> None:
    work(child, lambda part, step: time.sleep(60) if (part, step) == ("c", 1) else None)


def dies_between(child: Any) -> None:
    work(child, lambda part, step: os._exit(5) if (part, step) == ("", 2) else None)


def dies_at_once(child: Any) -> None:
    os._exit(6)


def raises(child: Any) -> None:
    work(child, lambda part, step: child.failed("a", 1, "no reason") if (part, step) == ("a", 1) else None)


def run(workers: ModuleType, *works: Callable[[Any], None]) -> tuple[list[Any], list[Any]]:
    """Results and failures of a case for each of `works`, with steps 1, 2 and 3."""
    them = [workers.Worker(work, name, (1, 2, 3), (20.0, 2.0)) for name, work in enumerate(works)]
    found = list(workers.run(them))
    failures = [f for f in found if isinstance(f, workers.Failure)]
    return [r for r in found if not isinstance(r, workers.Failure)], failures


def everything(case: int, without: set[tuple[int, str]] = frozenset()) -> list[tuple[int, int, str]]:  # type: ignore[assignment]
    return [(case, step, part) for step in (1, 2, 3) for part in PARTS if (step, part) not in without]


def test_results_come_in_order_in_spite_of_a_child_that_dies_in_preparation(workers: ModuleType) -> None:
    results, failures = run(workers, dies_in_preparation, raises)
    assert results == [
        *everything(0, {(step, "b") for step in (1, 2, 3)}),
        *everything(1),
    ]
    died, said = failures
    assert (died.case, died.part, died.step, died.why) == (0, "b", None, "process ended with 3")
    assert (said.case, said.part, said.step, said.why) == (1, "a", 1, "no reason")


def test_a_part_that_kills_its_process_or_hangs_is_left_out_from_then_on(workers: ModuleType) -> None:
    results, failures = run(workers, dies, hangs)
    assert results == [
        *everything(0, {(2, "b"), (3, "b")}),
        *everything(1, {(step, "c") for step in (1, 2, 3)}),
    ]
    assert [(f.case, f.part, f.step) for f in failures] == [(0, "b", 2), (1, "c", 1)]
    assert failures[0].why == "process ended with 4" and failures[1].why == "no answer in 2 s"


def test_a_step_that_kills_the_process_is_left_out(workers: ModuleType) -> None:
    results, [failure] = run(workers, dies_between)
    assert results == [cell for cell in everything(0) if cell[1] != 2]
    assert (failure.part, failure.step) == ("", 2)


def test_a_child_that_never_says_anything_is_given_up(workers: ModuleType) -> None:
    results, [failure] = run(workers, dies_at_once)
    assert not results and failure.why == "process ended with 6"
