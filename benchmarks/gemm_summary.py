"""What gemm_h200.py has measured, read against its goals.

python benchmarks/gemm_summary.py [benchmarks/results/gemm_h200.json]
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_results import Row

RECIPES: Final = ("w4a8-g128", "w4a8-chn", "w8a8-chn", "w4a16-g128")
QUANTIZED: Final = "w4a8-g128"
"""Also timed with a launch of its own that quantizes x."""
LOOP: Final = "wgmma-loop"
LOOP_NAME: Final = f"{LOOP} {QUANTIZED}"
READ_TBPS: Final = 4.2
LARGE_BYTES: Final = 58_000_000
"""Of codes, from which a matrix has to be read at nearly the full bandwidth."""


def wrong(rows: Sequence[Row]) -> list[Row]:
    """Rows of ours that failed or lie beyond rounding. With 16-bit activations weights and scales are rounded
    to bf16 too.
    """
    return [
        r
        for r in rows
        if str(r["system"]).startswith("tessera")
        and (
            "failed" in r or not float(r.get("error", 0)) < (0.008 if r["recipe"] == "w4a16-g128" else 0.004)
        )
    ]


Cell = dict[str, float]


def cells_of(rows: Sequence[Row]) -> dict[tuple[int, int, int], Cell]:
    """Microseconds by (N, K, M) and `system recipe`."""
    cells: dict[tuple[int, int, int], Cell] = {}
    for r in rows:
        if r["op"] == "gemm" and "us" in r:
            cells.setdefault((r["n"], r["k"], r["m"]), {})[f"{r['system']} {r['recipe']}"] = r["us"]
    return cells


def by_name(rows: Sequence[Row]) -> dict[tuple[str, str, int, int, int], Row]:
    """Rows with a time by op, `system recipe`, N, K and M."""
    return {(r["op"], f"{r['system']} {r['recipe']}", r["n"], r["k"], r["m"]): r for r in rows if "us" in r}


def peers_of(cell: Cell, recipe: str) -> Cell:
    """Those of the same run: for 16-bit activations those that have them too, for 8-bit weights torch's."""
    own = {"w4a16-g128": ("torch-cublas bf16", "humming w4a16-g128"), "w8a8-chn": ("torch",)}
    names = own.get(recipe, ("torch", "humming"))
    return {name: us for name, us in cell.items() if name.startswith(names)}


def summary(rows: Sequence[Row]) -> str:
    """Microseconds by cell, best peer of this run, and the ratio of ours to it (over one: ours is faster)."""
    ours = {recipe: f"tessera {recipe}" for recipe in RECIPES}
    lines = [
        "| N x K, M | " + " | ".join(RECIPES) + " | best peer | g128 to it | W4A16 to its own |",
        "|---" * 8 + "|",
    ]
    ratios: dict[str, list[float]] = {recipe: [] for recipe in RECIPES}
    groups: list[float] = []
    for (n, k, m), cell in cells_of(rows).items():
        last: dict[str, str] = {}
        for recipe, name in ours.items():
            peers = peers_of(cell, recipe)
            if name in cell and peers:
                ratios[recipe].append(min(peers.values()) / cell[name])
                last[recipe] = f"{ratios[recipe][-1]:.2f}"
        if m >= 64 and {ours[QUANTIZED], "humming w4a8-g128"} <= cell.keys():
            groups.append(cell["humming w4a8-g128"] / cell[ours[QUANTIZED]])
        peers = peers_of(cell, QUANTIZED)
        if last:
            best = min(peers, key=lambda name: peers[name])
            shown = " | ".join(f"{cell[name]:.1f}" if name in cell else "" for name in ours.values())
            own = f"{last.get(QUANTIZED, '')} | {last.get('w4a16-g128', '')}"
            lines.append(f"| {n}x{k}, {m} | {shown} | {peers[best]:.1f} {best} | {own} |")
    named = {**ratios, "w4a8-g128 to humming's groups, M >= 64": groups}
    for name, found in named.items():
        if found:
            mean, short = math.exp(statistics.fmean(map(math.log, found))), sum(r < 0.97 for r in found)
            what = f"least {min(found):.3f}, {short} of {len(found)} cells below 0.97"
            lines.append(f"{name}: geometric mean {mean:.3f}, {what}")
    return "\n".join([*lines, *goals(rows)])


def span(values: Sequence[float], digits: int = 2) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}" if values else "not measured"


def goals(rows: Sequence[Row]) -> list[str]:
    """What products have to show beside the best peer, a line each."""
    cells, at = cells_of(rows), by_name(rows)
    ours, w8 = "tessera w4a8-g128", "tessera w8a8-chn"
    many = {key: cell for key, cell in cells.items() if key[2] >= 512 and ours in cell}
    lines = [
        f"g128 to {name}, M >= 512: {span([c[name] / c[ours] for c in many.values() if name in c])}"
        for name in ("tessera w4a8-chn", w8)
    ]
    for recipe in ("w4a8-g128", "w4a8-chn"):
        mine, theirs = f"tessera {recipe}", f"qserve, another day {recipe}"
        both = [
            c[theirs] / c[mine] for (_, _, m), c in cells.items() if m >= 128 and {mine, theirs} <= c.keys()
        ]
        lines.append(f"{recipe} to QServe's kernels, M >= 128: {span(both)}")
    adds = [
        at["quantize+gemm", ours, *key]["us"] - cell[ours]
        for key, cell in cells.items()
        if key[2] <= 64 and ours in cell and ("quantize+gemm", ours, *key) in at
    ]
    lines.append(f"a launch that quantizes x adds, M <= 64: {span(adds, 1)} us")
    for n, k in sorted({key[:2] for key in cells}):
        few = [at["gemm", ours, n, k, m]["tbps"] for m in (1, 8, 16, 32) if ("gemm", ours, n, k, m) in at]
        if few and n * k >= 2 * LARGE_BYTES:
            parts = " ".join(f"{tbps / READ_TBPS:.2f}" for tbps in few)
            lines.append(f"{n}x{k}, few tokens: {parts} of {READ_TBPS} TB/s")
        for how in ("", " sustained"):
            mine_at = at.get(("gemm" + how, ours, n, k, 2048))
            loop_at = at.get(("wgmma" + how, LOOP_NAME, n, k, 2048))
            if mine_at and loop_at:
                rates = f"{mine_at['tops']:.0f} TOP/s, tensor cores alone {loop_at['tops']:.0f}"
                lines.append(f"{n}x{k}, M = 2048{how}: {rates}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "results" / "gemm_h200.json"
    parser.add_argument("results", type=Path, nargs="?", default=default)
    print(summary(json.loads(parser.parse_args().results.read_text())["rows"]))


if __name__ == "__main__":
    main()
