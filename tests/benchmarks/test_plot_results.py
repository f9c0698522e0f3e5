"""The roofline of benchmark rows: what a point is, and that picture and table hold all of them."""

import json
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COPY = {"system": "torch", "op": "copy", "tbps": 4.0}
DECODE = {
    "system": "tessera", "op": "decode_attention", "q_heads": 32, "kv_heads": 8, "head_dim": 128,
    "batch": 2, "context": 1000, "us": 2.0, "tbps": 4.096,
}  # fmt: skip
LINEAR = {"system": "torch-cublas", "op": "linear", "m": 2048, "n": 4096, "k": 4096, "us": 100.0}
GEMM = {"system": "tessera", "op": "gemm", "m": 2048, "n": 4096, "k": 4096, "us": 50.0}
GREEDY = {"system": "tessera", "op": "sample_greedy", "m": 1, "n": 1000, "us": 3.0}


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import plot_results

    return plot_results


def test_a_point_under_the_bandwidth_roof(plot: ModuleType) -> None:
    """4 operations a byte, a query head for each of 4 bytes of K and V: 8.192 MB in 2 us are 4.096 TB/s."""
    point = plot.point(DECODE, tbps=4.0)
    assert point.intensity == pytest.approx(4)
    assert point.rate == pytest.approx(4 * 4.096)
    assert point.fraction == pytest.approx(1.024)


def test_points_under_the_roofs_of_rates(plot: ModuleType) -> None:
    flops = 2 * 2048 * 4096 * 4096
    assert plot.point(LINEAR, tbps=4.0).fraction == pytest.approx(flops / 100 / 1e6 / 989)
    assert plot.point(GEMM, tbps=4.0).fraction == pytest.approx(flops / 50 / 1e6 / 1979)


def test_what_a_row_says_of_its_work_goes_first(plot: ModuleType) -> None:
    point = plot.point({**LINEAR, "flops": 1e9, "bytes": 1e8}, tbps=4.0)
    assert (point.intensity, point.rate) == (10, 10)


def test_rows_without_known_work_or_time_are_no_points(plot: ModuleType) -> None:
    assert plot.point(GREEDY, tbps=4.0) is None
    assert plot.point(COPY, tbps=4.0) is None


def test_writes_picture_and_table(plot: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.json"
    rows = [COPY, DECODE, LINEAR, GEMM, GREEDY]
    path.write_text(json.dumps({"machine": {"name": "a GPU"}, "date": "2026-11-30T10:00:00", "rows": rows}))
    monkeypatch.setattr("sys.argv", ["plot_results.py", str(path)])
    plot.main()
    picture = ElementTree.fromstring(path.with_suffix(".svg").read_text())
    titles = [t.text or "" for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 3
    assert any("decode attention, q_heads 32" in t and "1.02 of roof" in t for t in titles)
    table = path.with_suffix(".md").read_text()
    assert table.count("\n| ") == 1 + 4, "a head and every row with a time"


def test_clock_and_power_and_what_failed_are_in_the_table(plot: ModuleType) -> None:
    failed = {"system": "torch", "op": "gemm", "m": None, "n": 64, "k": 128, "failed": "no such thing"}
    lines = plot.table([GEMM | {"sm_mhz": 1755, "watts": 690}, LINEAR, failed], "a title").splitlines()
    assert lines[2].split(" | ")[-3:] == ["µs", "SM MHz", "W |"]
    assert lines[3].count("---") == lines[2].count(" | ") + 1
    assert [line.split(" | ")[-3:] for line in lines[4:6]] == [["50.0", "1755", "690 |"], ["100.0", "", " |"]]
    assert lines[-1] == "- torch, n 64, k 128: no such thing"


def test_committed_pictures_are_those_of_their_results(plot: ModuleType) -> None:
    results = json.loads((BENCHMARKS / "results" / "kernels_h200.json").read_text())
    rows = [row for row in results["rows"] if "us" in row]
    table = (BENCHMARKS / "results" / "kernels_h200.md").read_text()
    assert table == plot.table(rows, table.splitlines()[0].removeprefix("# "))
