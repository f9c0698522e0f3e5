"""What the GPU benchmarks share: graph-replay timing and the file their rows end in."""

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
QUERY = "name,driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu"


def replay_us(launches: Sequence[Callable[[], object]], replays: int = 7) -> float:
    """Microseconds a launch: median over replays of one graph that holds all of `launches`."""
    for launch in launches:
        launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return float(statistics.median(times)) / len(launches)


def machine() -> dict[str, str]:
    """The GPU as nvidia-smi sees it now, right after the work."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", "--id=0"]
    values = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    return dict(zip(QUERY.split(","), values, strict=True))


def write_results(path: Path, rows: Sequence[Row]) -> None:
    """`{machine, versions, date, rows}` as JSON, a row a line."""
    result = {
        "machine": machine(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    head = json.dumps(result, indent=1).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')
