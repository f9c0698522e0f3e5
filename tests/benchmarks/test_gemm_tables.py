"""What is made of GEMM timings: the table of cells, and the variants that are kept."""

from pathlib import Path
from types import ModuleType

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


def row(gemm: ModuleType, system: str, recipe: str, us: float) -> dict[str, object]:
    return gemm.row(gemm.System(system, recipe, lambda m: []), 64, 4096, 4096, us)


def test_roofs_of_rows(gemm: ModuleType) -> None:
    bytes_ = 4096 * 4096 * (4 + 12 / 128 + 16 / 4096) / 8 + 64 * 4096 + 2 * 64 * 4096
    found = row(gemm, "tessera", "w4a8-g128", 10.0)
    assert found["bytes"] == pytest.approx(bytes_)
    assert found["roof"] == pytest.approx(bytes_ / 4.2e6 / 10, abs=1e-3)
    assert row(gemm, "torch-cublas", "bf16", 10.0)["bytes"] == 2 * (4096 * 4096 + 2 * 64 * 4096)
    quantized = row(gemm, "tessera", "w4a8-g128+quantize", 10.0)
    assert (quantized["op"], quantized["recipe"]) == ("quantize+gemm", "w4a8-g128")


def test_summary_compares_with_the_best_peer(gemm: ModuleType) -> None:
    rows = [row(gemm, *case) for case in (
        ("tessera", "w4a8-g128", 8.0), ("tessera", "w4a8-chn", 7.0), ("humming", "w4a8-g128", 12.0),
        ("torch-fp8", "w8a8-fp8", 10.0), ("torch-fp8", "w8a8-fp8+quantize", 1.0),
        ("qserve", "w4a8-chn", 16.0),
    )]  # fmt: skip
    lines = gemm.summary(rows).splitlines()
    assert lines[2] == "| 4096x4096, 64 | 8.0 | 7.0 |  |  | 10.0 torch-fp8 w8a8-fp8 | 1.25 |"
    assert lines[3].startswith("geometric mean 1.250, least 1.250 over 1 cells")


def test_near_variants_give_way_to_the_one_that_wins_most(tune: ModuleType) -> None:
    def timed(m: int, variant: str, us: float) -> dict[str, object]:
        return {"format": "g128", "n": 64, "k": 128, "m": m, "variant": variant, "us": us}

    rows = [
        timed(1, "a", 10.0), timed(1, "b", 10.1), timed(8, "b", 5.0), timed(8, "a", 6.0), timed(16, "b", 7.0),
    ]  # fmt: skip
    table = tune.best(rows)
    assert table == {("g128", 64, 128): {1: "b", 8: "b", 16: "b"}}
    scope: dict[str, object] = {}
    exec(tune.source("a GPU", table), scope)
    assert scope["MEASURED"] == {"a GPU": table}
