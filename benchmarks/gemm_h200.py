"""Products with quantized weights beside torch, Humming and QServe; notes/2026-11-30-gemm-engine.md.

    python benchmarks/gemm_h200.py [--shapes 28672x4096] [--tokens 1,64,2048] [--systems tessera,humming]
        [--out benchmarks/results/gemm_h200.json]

Needs a GPU and three minutes. A process a shape prepares its systems, all at once, since kernels are compiled
(humming-kernels has to be importable, or is left out); then they measure one by one. A system that fails is
reported and the rest goes on. Cells that are measured replace those of an existing file.

Microseconds a launch: medians of replays of CUDA graphs, one a system, in turn, with rests, on random data,
over weights that together are four times the L2; in rows `sustained` without rests, so that the card's power
limit decides. Activations come quantized, as the norm or the activation function before a product gives them;
in the rows `+quantize` they come in bf16 and a launch of its own quantizes them. `roof` is the fraction of
what a copy's bandwidth or the datasheet's dense rate allows, whichever is less. Rows `wgmma-loop` are no
products: they do as many operations on chip. Rows `qserve, another day` are constants (gemm_peers.py).
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gemm_peers import QSERVE_US, TOKENS, System
from gemm_summary import LOOP, READ_TBPS, summary, wrong
from gemm_systems import Ready, builders
from gemm_timing import Reading, Timed, graph_of, time_in_turn
from gemm_workers import Child, Failure, Worker, run
from gpu_results import Row, write_results
from tessera.spec import Qtile, Recipe

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (57344, 8192), (8192, 28672))
INT8_TOPS, BF16_TFLOPS = 1979.0, 989.0
MANY_TOKENS = 2048
"""From which number on the tensor cores alone are timed too (of fewer the loop's launch would be most),
and everything for SUSTAINED_S seconds without rests.
"""
SUSTAINED_S = 0.6


class Failed(Exception):
    """CUDA gives no answers in this process any more."""


def attempt(child: Child, part: str, step: int | None, work: Callable[[], Any]) -> Any:
    """What `work` gives, or None, and the parent knows why. Raises Failed where nothing would work now."""
    child.at(part, step)
    try:
        return work()
    except Exception as error:
        child.failed(part, step, f"{type(error).__name__}: {error}")
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise Failed(part) from lost
        return None


def measure(child: Child) -> None:
    """Prepares the systems of a shape and times them for each number of tokens; in a process of its own."""
    torch.manual_seed(0)
    (n, k), wanted = child.case
    with torch.inference_mode():
        there: list[tuple[str, Ready]] = []
        for part, build in builders(n, k).items():
            if part.startswith(wanted) and part not in child.without:
                there += [(part, one) for one in attempt(child, part, None, build) or ()]
        for part, one in there:
            attempt(child, part, None, partial(first_launches, one, child.steps))
        torch.cuda.empty_cache()
        child.ready()
        for m in child.steps:
            child.done(m, cell(child, there, n, k, m))


def first_launches(one: Ready, tokens: Sequence[int]) -> None:
    """Whatever compiles at a first launch is compiled."""
    for m in tokens:
        one.system.make(m)[0]()
    torch.cuda.synchronize()


def graph(one: Ready, m: int, least_us: float) -> Timed:
    return graph_of(one.system.make(m), least_us * one.products(m))


def each(reading: Reading, one: Ready, m: int) -> Reading:
    """Of a product, from that of a launch."""
    return replace(reading, us=reading.us / one.products(m))


def cell(child: Child, there: Sequence[tuple[str, Ready]], n: int, k: int, m: int) -> list[Row]:
    """Rows of all systems for `m` tokens."""
    least_us = max(2.0 * m * n * k / INT8_TOPS, n * k / 2 / READ_TBPS) / 1e6
    graphs: list[tuple[str, Ready, Timed]] = []
    for part, one in there:
        if part != LOOP or m >= MANY_TOKENS:
            made = attempt(child, part, m, partial(graph, one, m, least_us))
            graphs += [] if made is None else [(part, one, made)]
    child.at("", m)
    rows = []
    for (part, one, _), reading in zip(graphs, time_in_turn([g for *_, g in graphs]), strict=True):
        found = row(one.system, m, n, k, each(reading, one, m))
        if one.ours is not None:
            error = attempt(child, part, m, partial(one.ours.error, m))
            found |= {"kernel": one.ours.variant(m), "error": None if error is None else round(error, 6)}
        rows.append(found)
    if m >= MANY_TOKENS:
        rows += sustained(child, [g for g in graphs if "+" not in g[1].system.recipe], n, k, m)
    for recipe in ("w4a8-g128", "w4a8-chn"):
        if m in TOKENS and (recipe, n, k) in QSERVE_US:
            constant = Reading(QSERVE_US[recipe, n, k][TOKENS.index(m)], {})
            rows.append(row(System("qserve, another day", recipe, lambda _: []), m, n, k, constant))
    return rows


def sustained(child: Child, graphs: Sequence[tuple[str, Ready, Timed]], n: int, k: int, m: int) -> list[Row]:
    """Rows of systems without rests, after a run that brings the card to its limit."""
    rows = []
    for i, (part, one, timed) in enumerate([*graphs[:1], *graphs]):
        reading = attempt(child, part, m, partial(timed.sustained, SUSTAINED_S))
        if i and reading is not None:
            found = row(one.system, m, n, k, each(reading, one, m))
            rows.append(found | {"op": f"{found['op']} sustained"})
    return rows


def failure(failed: Failure) -> Row:
    """Its row, without a time."""
    (n, k), _ = failed.case
    return {"system": failed.part, "op": "gemm", "m": failed.step, "n": n, "k": k, "failed": failed.why}


def row(system: System, m: int, n: int, k: int, reading: Reading) -> Row:
    us = reading.us
    name = system.recipe.partition("+")[0]
    weight_bits = {"bf16": 16.0, "w8a8-fp8": 8.0}.get(name) or float(
        Qtile((n, k), Recipe.parse(name).weight_chain()).bits_per_element
    )
    x_bytes = 2 if name in ("bf16", "w4a16-g128") or "+" in system.recipe else 1
    peak = BF16_TFLOPS if name in ("bf16", "w4a16-g128") else INT8_TOPS
    flops, nbytes = 2.0 * m * n * k, n * k * weight_bits / 8 + m * k * x_bytes + 2 * m * n
    op = "wgmma" if system.name == LOOP else "quantize+gemm" if "+" in system.recipe else "gemm"
    least = max(flops / peak, nbytes / READ_TBPS) / 1e6
    return {
        "system": system.name, "op": op, "recipe": name,
        "m": m, "n": n, "k": k, "us": round(us, 2), "tbps": round(nbytes / us / 1e6, 3),
        "tops": round(flops / us / 1e6, 1), "roof": round(least / us, 3), "flops": flops, "bytes": nbytes,
        **reading.card,
    }  # fmt: skip


def kept(path: Path, measured: Sequence[Row]) -> list[Row]:
    """Rows of the file at `path`, if there is one, of cells that `measured` has not."""
    if not path.exists():
        return []
    anew = {(r["n"], r["k"], r["m"]) for r in measured}
    return [r for r in json.loads(path.read_text())["rows"] if (r["n"], r["k"], r["m"]) not in anew]


def pairs(text: str) -> list[tuple[int, int]]:
    return [(int(n), int(k)) for n, k in (item.split("x") for item in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=pairs, default=SHAPES)
    parser.add_argument("--tokens", type=lambda text: [int(m) for m in text.split(",")], default=TOKENS)
    parser.add_argument("--systems", default=f"tessera,torch,humming,{LOOP}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gemm_h200.json")
    args = parser.parse_args()
    wanted = tuple(args.systems.split(","))
    started = time.perf_counter()
    rows: list[Row] = []
    workers = [Worker(measure, (shape, wanted), args.tokens) for shape in args.shapes]
    for found in run(workers):
        found = failure(found) if isinstance(found, Failure) else found
        if rows and rows[-1]["n"] != found["n"]:
            write_results(args.out, [*kept(args.out, rows), *rows])
        rows.append(found | {"date": datetime.now(UTC).isoformat(timespec="seconds")})
        shown = (
            "system",
            "recipe",
            "m",
            "n",
            "k",
            "us",
            "tops",
            "roof",
            "sm_mhz",
            "watts",
            "kernel",
            "failed",
        )
        words = "  ".join(f"{found[name]}" for name in shown if name in found)
        print(f"{time.perf_counter() - started:6.1f} s  {words}", flush=True)
    write_results(args.out, [*kept(args.out, rows), *rows])
    print(summary(json.loads(args.out.read_text())["rows"]))
    for found in wrong(rows):
        print(f"WRONG: {found}")
    if wrong(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
