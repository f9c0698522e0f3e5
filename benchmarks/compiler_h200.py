"""Prices of graphs against measured kernels that compute those graphs, on one H200.

    python benchmarks/compiler_h200.py          # table, and benchmarks/results/compiler_h200.json

Reads benchmarks/results/ablation_dequant.json (one data flow, N = 33792, K = 4096, several ways to unpack)
and prices the graph that each way computes; needs no GPU. The launch term is that of a chained kernel, the
measured kernel has 5 us of start and end of its own (notes/2026-11-30-ablation-dequant.md).
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from tessera.compiler import Candidate, formula, propagate, skeleton
from tessera.compiler.price import price
from tessera.hardware import find_device

RESULTS: Final = Path(__file__).parent / "results"
N, K = 33792, 4096

GRAPHS: Final = {
    "Bytes": ("w8a8", "codes(x)·w"),
    "Channel": ("qoq-chn", "(codes(x)·J)_[-w.zero] + codes(x)·w"),
    "MultiplyAdd": (
        "qoq-g128",
        "codes(x)·(w·w.group_scale + 128 - (w.group_scale*w.group_zero)) + (codes(x)·J)_[-128]",
    ),
    "PartialSums": ("sym4a8-g128", "Σk/128 (codes(x)·w)_[w.scale]"),
}
"""Ways of the ablation whose graph the search finds: skeleton, and what its scales are applied to."""


def candidate(name: str, inner: str) -> Candidate:
    """The graph with every scale that can be deferred applied to `inner`, in the epilogue."""
    suffixes = ("_[w.scale]_[scale(x)]", "_[scale(x)]_[w.scale]", "_[scale(x)]")
    for found in propagate(skeleton(name, N, K)).candidates:
        if formula(found.graph.outputs[0]) in [f"({inner}){s}" for s in suffixes]:
            return found
    raise SystemExit(f"{name} has no graph ({inner})_s")


def rows() -> list[dict[str, Any]]:
    """One row for each measured case: predicted and measured microseconds and their ratio."""
    device = find_device("h200")
    measured = json.loads((RESULTS / "ablation_dequant.json").read_text())["rows"]
    graphs = {way: candidate(*what) for way, what in GRAPHS.items()}
    out = []
    for row in measured:
        if row["way"] in graphs:
            p = price(graphs[row["way"]], row["m"], device)
            case = {"way": row["way"], "graph": p.formula, "m": row["m"], "n": N, "k": K, "bound": p.bound}
            us = 1e6 * p.seconds
            times = {
                "predicted_us": round(us, 1),
                "us": row["us"],
                "over_predicted": round(row["us"] / us, 3),
            }
            out.append({"system": "tessera", "op": "price", **case, **times})
    return out


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    found = rows()
    for r in found:
        print(f"{r['way']:12} m={r['m']:<5} {r['predicted_us']:7.1f} us predicted, {r['us']:7.1f} measured, "
              f"{r['over_predicted']:.2f}, {r['bound']}")  # fmt: skip
    source = json.loads((RESULTS / "ablation_dequant.json").read_text())
    header = {key: source[key] for key in ("machine", "versions", "date")}
    (RESULTS / "compiler_h200.json").write_text(json.dumps({**header, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
