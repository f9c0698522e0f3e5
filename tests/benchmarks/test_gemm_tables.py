"""What is made of GEMM timings: the table of cells, and the variants that are kept."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gemm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gemm_h200

    return gemm_h200


@pytest.fixture
def tune(gemm: ModuleType) -> ModuleType:
    import tune_gemm

    return tune_gemm


def row(gemm: ModuleType, system: str, recipe: str, us: float, n: int = 4096) -> dict[str, Any]:
    reading = gemm.Reading(us, {"sm_mhz": 1980, "watts": 300})
    return gemm.row(gemm.System(system, recipe, lambda m: []), 64, n, 4096, reading)


def test_roofs_of_rows(gemm: ModuleType) -> None:
    bytes_ = 4096 * 4096 * (4 + 12 / 128 + 16 / 4096) / 8 + 64 * 4096 + 2 * 64 * 4096
    found = row(gemm, "tessera", "w4a8-g128", 10.0)
    assert found["bytes"] == pytest.approx(bytes_)
    assert found["roof"] == pytest.approx(bytes_ / 4.2e6 / 10, abs=1e-3)
    assert found["sm_mhz"] == 1980
    assert row(gemm, "torch-cublas", "bf16", 10.0)["bytes"] == 2 * (4096 * 4096 + 2 * 64 * 4096)
    quantized = row(gemm, "tessera", "w4a8-g128+quantize", 10.0)
    assert (quantized["op"], quantized["recipe"]) == ("quantize+gemm", "w4a8-g128")
    assert row(gemm, gemm.LOOP, "w4a8-g128", 1.0)["op"] == "wgmma"


def test_summary_compares_with_the_best_peer(gemm: ModuleType) -> None:
    cases = (
        ("tessera", "w4a8-g128", 8.0), ("tessera", "w4a8-chn", 7.0), ("tessera", "w4a16-g128", 16.0),
        ("humming", "w4a8-g128", 12.0), ("humming", "w4a16-g128", 18.0), ("torch-cublas", "bf16", 14.4),
        ("torch-fp8", "w8a8-fp8", 10.0), ("torch-fp8", "w8a8-fp8+quantize", 1.0),
        ("qserve", "w4a8-chn", 1.0), (gemm.LOOP, "w4a8-g128", 1.0),
    )  # fmt: skip
    rows = [row(gemm, *case) for case in cases]
    rows.append({"system": "tessera w8a8-chn", "op": "gemm", "m": 64, "n": 4096, "k": 4096, "failed": "why"})
    lines = gemm.summary(rows).splitlines()
    assert lines[2:7] == [
        "| 4096x4096, 64 | 8.0 | 7.0 |  | 16.0 | 10.0 torch-fp8 w8a8-fp8 | 1.25 | 0.90 |",
        "w4a8-g128: geometric mean 1.250, least 1.250, 0 of 1 cells below 0.97",
        "w4a8-chn: geometric mean 1.429, least 1.429, 0 of 1 cells below 0.97",
        "w4a16-g128: geometric mean 0.900, least 0.900, 1 of 1 cells below 0.97",
        "w4a8-g128 to humming's groups, M >= 64: geometric mean 1.500, least 1.500, 0 of 1 cells below 0.97",
    ]


def test_goals_are_read_off_the_rows(gemm: ModuleType) -> None:
    import gemm_summary

    def at(m: int, n: int, *timed: tuple[str, str, float]) -> list[dict[str, Any]]:
        return [
            gemm.row(gemm.System(*case, lambda m: []), m, n, 28672, gemm.Reading(us, {}))
            for *case, us in timed
        ]

    rows = [
        *at(32, 8192, ("tessera", "w4a8-g128", 40.0), ("tessera", "w4a8-g128+quantize", 43.0)),
        *at(
            2048, 8192, ("tessera", "w4a8-g128", 600.0), ("tessera", "w8a8-chn", 630.0),
            ("tessera", "w4a8-chn", 570.0),
            ("qserve, another day", "w4a8-g128", 2100.0), (gemm.LOOP, "w4a8-g128", 500.0),
        ),
        *at(2048, 4096, ("tessera", "w4a8-g128", 300.0), ("tessera", "w8a8-chn", 300.0)),
    ]  # fmt: skip
    tbps = rows[0]["tbps"] / 4.2
    assert gemm_summary.goals(rows) == [
        "g128 to tessera w4a8-chn, M >= 512: 0.95 to 0.95",
        "g128 to tessera w8a8-chn, M >= 512: 1.00 to 1.05",
        "w4a8-g128 to QServe's kernels, M >= 128: 3.50 to 3.50",
        "w4a8-chn to QServe's kernels, M >= 128: not measured",
        "a launch that quantizes x adds, M <= 64: 3.0 to 3.0 us",
        f"8192x28672, few tokens: {tbps:.2f} of 4.2 TB/s",
        "8192x28672, M = 2048: 1604 TOP/s, tensor cores alone 1924",
    ]


def test_rows_that_failed_or_are_inexact_are_wrong(gemm: ModuleType) -> None:
    right = row(gemm, "tessera", "w4a8-g128", 8.0) | {"error": 0.002}
    inexact = right | {"error": 0.005}
    rounded = row(gemm, "tessera", "w4a16-g128", 8.0) | {"error": 0.005}
    unknown = right | {"error": float("nan")}
    failed = gemm.failure(gemm.Failure(((4096, 4096), ()), "tessera w4a8-chn", 64, "why"))
    peer = gemm.failure(gemm.Failure(((4096, 4096), ()), "humming w4a8-chn", None, "why"))
    assert gemm.wrong([right, inexact, rounded, unknown, failed, peer]) == [inexact, unknown, failed]


def test_cells_that_are_measured_again_replace_all_rows_of_theirs(gemm: ModuleType, tmp_path: Path) -> None:
    old = [row(gemm, "humming", "w4a8-g128", 9.0, n) for n in (64, 128)]
    path = tmp_path / "rows.json"
    assert gemm.kept(path, old) == []
    path.write_text(json.dumps({"rows": old}))
    assert gemm.kept(path, [row(gemm, "tessera", "w4a8-g128", 8.0, 64)]) == old[1:]


def timed(m: int, variant: str, us: float, form: str = "g128") -> dict[str, Any]:
    return {"format": form, "n": 64, "k": 128, "m": m, "variant": variant, "us": us}


def test_near_variants_give_way_to_the_one_that_wins_most(tune: ModuleType) -> None:
    rows = [
        timed(1, "a", 10.0), timed(1, "b", 10.1), timed(8, "b", 5.0), timed(8, "a", 6.0), timed(16, "b", 7.0),
    ]  # fmt: skip
    table = tune.best(rows)
    assert table == {("g128", 64, 128): {1: "b", 8: "b", 16: "b"}}
    scope: dict[str, object] = {}
    exec(tune.source("a GPU", table), scope)
    assert scope["MEASURED"] == {"a GPU": table}


def test_timings_replace_those_of_the_same_cell(tune: ModuleType, tmp_path: Path) -> None:
    names = list(tune.choices())
    old = [timed(1, names[0], 0.1), timed(8, names[0], 1.0), timed(1, names[0], 1.0, "w8")]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [*old, timed(8, "is no more", 0.1)]}))
    new = [timed(1, name, float(us)) for us, name in reversed(list(enumerate(names, 1)))]
    kept = tune.merged(path, new)
    assert [r["us"] for r in kept if r["m"] == 1 and r["format"] == "g128"] == list(range(1, tune.KEPT + 1))
    assert [r for r in kept if r in old] == old[1:] and len(kept) == tune.KEPT + 2


def test_report_tells_what_the_model_loses(tune: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = tune.choose.WIDE.variants[:2]
    costs = {str(fast): 8.0, str(slow): 4.0}
    family = replace(tune.choose.WIDE, cost_us=lambda v, product, on: costs[str(v)])
    monkeypatch.setattr(tune.choose, "FAMILIES", (family,))
    rows = [timed(m, str(v), us) for m in (1, 8) for v, us in ((fast, 4.0), (slow, 4.0 if m == 1 else 5.0))]
    text = tune.model_report(rows)
    assert "2 cells, 4 timings" in text and "12.5% slower" in text
    assert "within 5 % in 1, 25% at worst (('g128', 64, 128, 8))" in text


def test_what_is_written_is_what_the_timings_say(tune: ModuleType) -> None:
    """measured.py comes from the JSON beside it."""
    scope: dict[str, Any] = {}
    exec(tune.measured_source(tune.RESULTS), scope)
    assert scope["MEASURED"] == tune.measured.MEASURED


class Pipe:
    """Stands for the connection of a child: keeps what it says."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def send(self, what: tuple[Any, ...]) -> None:
        self.said.append(what)

    def recv(self) -> str:
        return "go"


class Graph:
    """Launches once, where a graph would be captured."""

    def __init__(self, launches: list[Any], least_us: float) -> None:
        for launch in launches:
            launch()

    def sustained(self, seconds: float) -> Any:
        from gemm_timing import Reading

        return Reading(20.0, {"watts": 690})


@pytest.fixture
def systems(gemm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Systems to be filled in by a test; graphs and times are not of this world."""
    made: dict[str, Any] = {}
    monkeypatch.setattr(gemm, "builders", lambda n, k: made)
    monkeypatch.setattr(gemm, "graph_of", Graph)
    monkeypatch.setattr(gemm, "time_in_turn", lambda graphs: [gemm.Reading(10.0, {}) for _ in graphs])
    monkeypatch.setattr(gemm.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gemm.torch.cuda, "empty_cache", lambda: None)
    return made


def system(gemm: ModuleType, name: str, fails_at: int = 0) -> Any:
    def launch(m: int) -> None:
        if m == fails_at:
            raise RuntimeError(f"no {m}")

    made = gemm.System(name, "w4a8-g128", lambda m: [lambda: launch(m)])
    return lambda: [gemm.Ready(made)]


def refuses() -> list[Any]:
    raise ImportError("not here")


def test_a_system_that_fails_is_reported_and_the_others_are_timed(
    gemm: ModuleType, systems: dict[str, Any]
) -> None:
    systems |= {
        "tessera a": system(gemm, "tessera"),
        "humming b": refuses,
        "torch c": system(gemm, "torch", fails_at=8),
        "other d": system(gemm, "other"),
        "torch e": system(gemm, "torch left out"),
    }
    pipe = Pipe()
    child = gemm.Child(pipe, ((64, 128), ("tessera", "humming", "torch")), (1, 8), frozenset({"torch e"}))
    gemm.measure(child)
    failed = [what[1:] for what in pipe.said if what[0] == "failed"]
    assert failed[0] == ("humming b", None, "ImportError: not here")
    assert failed[-1] == ("torch c", 8, "RuntimeError: no 8")
    done = {step: rows for kind, step, rows in (w for w in pipe.said if w[0] == "done")}
    assert [(r["system"], r["m"]) for r in done[1]] == [("tessera", 1), ("torch", 1)]
    assert [(r["system"], r["m"]) for r in done[8]] == [("tessera", 8)]


def test_many_tokens_also_run_without_rests(gemm: ModuleType, systems: dict[str, Any]) -> None:
    systems |= {"tessera a": system(gemm, "tessera")}
    pipe = Pipe()
    gemm.measure(gemm.Child(pipe, ((64, 128), ("",)), (512, 2048), frozenset()))
    rows = [row for kind, *what in pipe.said if kind == "done" for row in what[1]]
    assert [(r["op"], r["m"], r["us"]) for r in rows] == [
        ("gemm", 512, 10.0), ("gemm", 2048, 10.0), ("gemm sustained", 2048, 20.0),
    ]  # fmt: skip


def test_a_launch_may_do_the_work_of_many_products(gemm: ModuleType, systems: dict[str, Any]) -> None:
    loop = gemm.System(gemm.LOOP, "w4a8-g128", lambda m: [lambda: None])
    systems |= {gemm.LOOP: lambda: [gemm.Ready(loop, products=lambda m: 2**14 / m)]}
    pipe = Pipe()
    gemm.measure(gemm.Child(pipe, ((64, 128), ("",)), (512, 2048, 4096), frozenset()))
    rows = [row for kind, *what in pipe.said if kind == "done" for row in what[1]]
    assert [(r["op"], r["m"], r["us"]) for r in rows] == [
        ("wgmma", 2048, 1.25), ("wgmma sustained", 2048, 2.5),
        ("wgmma", 4096, 2.5), ("wgmma sustained", 4096, 5.0),
    ]  # fmt: skip


def test_a_process_whose_device_is_lost_ends(
    gemm: ModuleType, systems: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    systems |= {"tessera a": refuses, "torch b": system(gemm, "torch")}
    monkeypatch.setattr(gemm.torch.cuda, "synchronize", lost)
    pipe = Pipe()
    with pytest.raises(gemm.Failed):
        gemm.measure(gemm.Child(pipe, ((64, 128), ("",)), (1,), frozenset()))
    assert pipe.said == [("at", "tessera a", None), ("failed", "tessera a", None, "ImportError: not here")]
