"""Plans against measurements on one H200: decode steps and prefills of this engine and of vLLM.

    python benchmarks/planner_h200.py                # tables, and benchmarks/results/planner_h200.json
    python benchmarks/planner_h200.py --calibrate    # first make src/tessera/hardware/kernels.json anew

Reads what is in benchmarks/results, this engine's in `e2e*_h200.json`; needs no GPU. Every row says how far
off each answer of the planner is: `bound` (all bytes or all products), `by_operation`, `predicted`; and for
traced steps of this engine how far off each operation of the prediction is.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner_calibration import calibrated, operation_us, whole
from tessera.hardware import Device, find_device, kernel_costs
from tessera.hardware.kernels import FILE
from tessera.planner import MODELS, Precision, StepModel, precision_of

RESULTS = Path(__file__).parent / "results"
MODEL = MODELS["llama-3-8b"]


def sources() -> dict[str, Any]:
    """Contents of the files of measured steps, by name."""
    paths = [*sorted(RESULTS.glob("e2e*_h200.json")), RESULTS / "vllm_h200.json"]
    return {path.name: json.loads(path.read_text()) for path in paths}


def precision(name: str) -> Precision:
    """A recipe or baseline, or one with "kv fp8" behind a comma."""
    recipe, comma, _ = name.partition(", kv fp8")
    found, fp8 = precision_of(recipe), precision_of("fp8")
    return replace(found, kv=fp8.kv, kv_bits=8) if comma else found


def measured() -> Iterator[dict[str, Any]]:
    """Rows with precision (of this engine: bf16 or a recipe), batch, mean context, milliseconds of a step."""
    for data in sources().values():
        for row in data["rows"]:
            row = {"precision": row.get("recipe", "bf16")} | row
            if row["op"] == "decode_step":
                yield row | {"ms": row["step_us"] / 1e3}
            elif row["op"] == "generate":
                yield row | {"context": row["prompt"] + row["output"] / 2, "ms": row["tpot_ms"]}


def model_of(row: dict[str, Any], device: Device) -> StepModel:
    return StepModel(MODEL, device, precision(row["precision"]))


def is_timed_prefill(row: dict[str, Any]) -> bool:
    """Not of one prompt: it takes some 15 ms and was timed once, so that a pause of the host shows."""
    return "prefill_tok_s" in row and row["batch"] > 1


def compared(row: dict[str, Any], costs: StepModel) -> dict[str, Any]:
    """Measured over planned for the step, its terms where they were traced, and the prefill where it was."""
    batch, context = row["batch"], row["context"]
    found: dict[str, Any] = {key: row[key] for key in ("system", "precision", "op", "batch", "context")}
    if "output" in row:
        found["output"] = row["output"]
    found["step_ms"] = round(row["ms"], 3)
    for how in ("bound", "by_operation", "predicted"):
        planned = costs.decode(how, batch, context).value * 1e3
        found[f"{how}_ms"] = round(planned, 3)
        found[f"over_{how}"] = round(row["ms"] / planned, 3)
    if "gemm_us" in row:
        found |= terms(row, costs)
    if is_timed_prefill(row):
        planned = row["prompt"] / costs.prefill(row["prompt"]).value
        found |= {"prefill_tok_s": row["prefill_tok_s"], "predicted_prefill_tok_s": round(planned)}
        found["prefill_over_predicted"] = round(row["prefill_tok_s"] / planned, 3)
    return found


def terms(row: dict[str, Any], costs: StepModel) -> dict[str, Any]:
    """Microseconds of each operation, measured and planned; `ends` is what is left, gaps with it. A trace is
    not `whole` where some of its sequences cannot have been there.
    """
    planned = costs.operations(row["batch"], row["context"])
    operations = {
        name: {"us": round(us, 1), "planned_us": round(1e6 * planned[name].value, 1)}
        for name, us in operation_us(row).items()
        if name in planned
    }
    attention = operations["attention"]
    planned_us = sum(o["planned_us"] for o in operations.values()) - attention["planned_us"]
    return {
        "operations": operations,
        "whole": whole(row, costs),
        "over_predicted_but_attention": round((row["step_us"] - attention["us"]) / planned_us, 3),
    }


def calibrate(device: Device) -> None:
    """Write what the measurements say that kernels cost to where plans read it."""
    timed = json.loads((RESULTS / "gemm_h200.json").read_text())
    ours = {name: data for name, data in sources().items() if name.startswith("e2e")}
    source = f"benchmarks/planner_h200.py --calibrate: {', '.join(ours)}, gemm_h200.json"
    date = max(data["date"] for data in [*ours.values(), timed])
    for _ in range(2):  # shares of a prefill are of what the other costs leave
        steps = [
            (row if is_timed_prefill(row) else {**row, "prefill_tok_s": None}, model_of(row, device))
            for row in measured()
            if row["system"] == "tessera"
        ]
        FILE.write_text(json.dumps(calibrated(steps, timed["rows"], date[:10], source), indent=1) + "\n")
        kernel_costs.cache_clear()


def show(rows: list[dict[str, Any]]) -> None:
    header = ("system", "precision", "op", "batch", "context", "step_ms", "over_bound", "over_by_operation",
              "over_predicted", "prefill_over_predicted")  # fmt: skip
    print(" | ".join(header))
    for row in rows:
        print(" | ".join(str(row.get(name, "")) for name in header))
    print("\nmeasured / planned, µs of a traced step")
    for row in rows:
        if "operations" in row:
            parts = (f"{k} {v['us']:.0f} / {v['planned_us']:.0f}" for k, v in row["operations"].items())
            note = "" if row["whole"] else " (sequences are missing)"
            print(f"{row['precision']}, batch {row['batch']}{note}: {', '.join(parts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrate", action="store_true", help=f"write {FILE.name} anew")
    device = find_device("h200")
    if parser.parse_args().calibrate:
        calibrate(device)
    rows = [compared(row, model_of(row, device)) for row in measured()]
    show(rows)
    data = {
        "machine": {"name": "NVIDIA H200"},
        "versions": {"measurements": "as in " + ", ".join(sources())},
        "date": max(data["date"] for data in sources().values()),
        "rows": rows,
    }
    (RESULTS / "planner_h200.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
