"""Plans against measurements on one H200: decode steps and prefills of this engine and of vLLM.

    python benchmarks/planner_h200.py           # table, and benchmarks/results/planner_h200.json

Reads SOURCES in benchmarks/results; needs no GPU. Every row says how far off each answer of the planner is:
`bound` (all bytes or all products), `by_operation`, `predicted`; and for traced steps of this engine how far
off each term of the prediction is.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tessera.hardware import find_device
from tessera.planner import MODELS, Precision, StepModel, precision_of

RESULTS = Path(__file__).parent / "results"
SOURCES = ("e2e_h200", "e2e_w4a8_h200", "vllm_h200")
MODEL = MODELS["llama-3-8b"]
PRODUCTS_PER_LAYER = 4


def precision(name: str) -> Precision:
    """A recipe or baseline, or one with "kv fp8" behind a comma."""
    recipe, comma, _ = name.partition(", kv fp8")
    found, fp8 = precision_of(recipe), precision_of("fp8")
    return replace(found, kv=fp8.kv, kv_bits=8) if comma else found


def measured() -> Iterator[dict[str, Any]]:
    """Rows with precision (of this engine: bf16 or a recipe), batch, mean context, milliseconds of a step."""
    for name in SOURCES:
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            row = {"precision": row.get("recipe", "bf16")} | row
            if row["op"] == "decode_step":
                yield row | {"ms": row["step_us"] / 1e3}
            elif row["op"] == "generate":
                yield row | {"context": row["prompt"] + row["output"] / 2, "ms": row["tpot_ms"]}


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
    if "prefill_tok_s" in row:
        planned = row["prompt"] / costs.prefill(row["prompt"]).value
        found |= {"prefill_tok_s": row["prefill_tok_s"], "predicted_prefill_tok_s": round(planned)}
        found["prefill_over_predicted"] = round(row["prefill_tok_s"] / planned, 3)
    return found


def terms(row: dict[str, Any], costs: StepModel) -> dict[str, Any]:
    """Microseconds planned and measured over planned: products, attention, and all else with the gaps."""
    fixed, layers = costs.device.kernel_seconds, costs.model.layers
    step = costs.decode("predicted", row["batch"], row["context"])
    products = step.at(context=0) - step.inputs["kernels"] * fixed
    products -= row["batch"] * costs.activations / costs.device.bandwidth
    attention = step.value - step.at(context=0)
    planned = {
        "products": products + (PRODUCTS_PER_LAYER * layers + 1) * fixed,
        "attention": attention + layers * fixed,
    }
    planned["rest"] = step.value - sum(planned.values())
    got = {"products": row["gemm_us"], "attention": row["attention_us"]}
    got["rest"] = row["step_us"] - sum(got.values())
    return {
        name: value
        for term, seconds in planned.items()
        for name, value in (
            (f"{term}_us", round(got[term], 1)),
            (f"planned_{term}_us", round(seconds * 1e6, 1)),
            (f"{term}_over_planned", round(got[term] / (seconds * 1e6), 3)),
        )
    }


def main() -> None:
    device = find_device("h200")
    rows = [compared(row, StepModel(MODEL, device, precision(row["precision"]))) for row in measured()]
    header = ("system", "precision", "op", "batch", "context", "step_ms", "over_bound", "over_by_operation",
              "over_predicted", "prefill_over_predicted")  # fmt: skip
    print(" | ".join(header))
    for row in rows:
        print(" | ".join(str(row.get(name, "")) for name in header))
    data = {
        "machine": {"name": "NVIDIA H200"},
        "versions": {"measurements": "as in " + ", ".join(f"{name}.json" for name in SOURCES)},
        "date": max(json.loads((RESULTS / f"{n}.json").read_text())["date"] for n in SOURCES),
        "rows": rows,
    }
    (RESULTS / "planner_h200.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
