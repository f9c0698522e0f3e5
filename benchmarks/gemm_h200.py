"""Products with quantized weights beside torch, Humming and QServe; notes/2026-11-30-gemm-engine.md.

    python benchmarks/gemm_h200.py [--shapes 28672x4096] [--tokens 1,64,2048] [--systems tessera,humming]
        [--out benchmarks/results/gemm_h200.json]

Needs a GPU; three minutes, and as long again for the first compilation of Humming's kernels (humming-kernels
has to be importable, or is left out). Microseconds a launch: medians of replays of CUDA graphs, one a system,
in turn, on random data, over weights that together are four times the L2. Activations come quantized, as the
norm or the activation function before a product gives them; in the rows `+quantize` they come in bf16 and a
launch of its own quantizes them. `roof` is the fraction of what a copy's bandwidth or the datasheet's dense
rate allows, whichever is less. Rows `qserve, another day` are constants (gemm_peers.py).
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gemm_peers import (
    DTYPE,
    HUMMING,
    QSERVE_US,
    TOKENS,
    Launch,
    System,
    copies,
    cublas_bf16,
    humming,
    torch_fp8,
)
from gpu_results import Row, write_results
from tessera.engine.dummy import random_weight
from tessera.kernels.cuda.arguments import prepare_announced
from tessera.kernels.cuda.rows import CudaQuantizeRows
from tessera.kernels.cuda.target import device as target
from tessera.kernels.cuda.tiled_rows import untile_rows
from tessera.kernels.errors import NoKernelError
from tessera.kernels.ops import LINEAR, LinearProblem, RowsProblem
from tessera.kernels.types import Activation, TiledRows
from tessera.spec import BF16, LinearSpec, Qtile, Recipe

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (57344, 8192), (8192, 28672))
RECIPES = ("w4a8-g128", "w4a8-chn", "w8a8-chn", "w4a16-g128")
REPLAYS = 5
GRAPH_US = 500.0
"""Length of a graph from which a replay's own start, about 10 us, no longer shows."""
READ_TBPS, INT8_TOPS, BF16_TFLOPS = 4.2, 1979.0, 989.0
CHECKED = 64
"""Rows of an output that are compared with float64."""


class Ours:
    """One of our linear layers with several copies of its weights."""

    def __init__(self, recipe: str, n: int, k: int) -> None:
        parsed = Recipe.parse(recipe)
        chain, activation = parsed.weight_chain(), parsed.activation_chain()
        problem = LinearProblem(target(), LinearSpec(n, k, chain, activation, BF16))
        kernel = LINEAR.select(problem)
        self.weight = random_weight(Qtile((n, k), chain), torch.Generator("cuda").manual_seed(n + k))
        first = kernel.bind(problem, self.weight, None)
        packed = first.weights
        others = (replace(packed, tiles=packed.tiles.clone()) for _ in range(copies(packed.nbytes) - 1))
        self.layers = [first, *(replace(first, weights=other) for other in others)]
        self.int8 = not activation.is_plain
        rows = RowsProblem(target(), k, DTYPE, quantize=True)
        self.quantize = CudaQuantizeRows("sm90", DTYPE).bind(rows)
        self.k = k
        prepare_announced()

    def input(self, m: int) -> tuple[Tensor, Activation]:
        """Random activations in bf16, and what the layer takes."""
        x = torch.randn(m, self.k, device="cuda", dtype=DTYPE)
        return x, self.quantize(x) if self.int8 else x

    def make(self, m: int) -> list[Launch]:
        _, x = self.input(m)
        return [lambda layer=layer: layer(x) for layer in self.layers]

    def make_quantized(self, m: int) -> list[Launch]:
        x, _ = self.input(m)
        return [lambda layer=layer: layer(self.quantize(x)) for layer in self.layers]

    def variant(self, m: int) -> str:
        return self.layers[0].variant(m)

    def error(self, m: int) -> float:
        """Largest difference from float64, by the largest value, of CHECKED rows; rounding to bf16: 0.002."""
        _, x = self.input(m)
        y = self.layers[0](x)[-CHECKED:].double()
        if isinstance(x, TiledRows):
            rows = untile_rows(x)
            exact = rows.codes[-CHECKED:].double() * rows.scale[-CHECKED:, None].double()
        else:
            exact = x[-CHECKED:].double()
        want = exact @ self.weight.dequantize(torch.float64).T
        return float((y - want).abs().max() / want.abs().max())


def systems(n: int, k: int, wanted: Sequence[str]) -> Iterator[tuple[System, Ours | None]]:
    if "tessera" in wanted:
        for recipe in RECIPES:
            try:
                ours = Ours(recipe, n, k)
            except NoKernelError as error:
                print(f"{recipe} is left out: {error}", flush=True)
                continue
            yield System("tessera", recipe, ours.make), ours
            if recipe == "w4a8-g128":
                yield System("tessera", f"{recipe}+quantize", ours.make_quantized), None
    if "torch" in wanted:
        yield cublas_bf16(n, k), None
        yield torch_fp8(n, k), None
        yield torch_fp8(n, k, quantize=True), None
    if "humming" in wanted:
        for recipe in HUMMING:
            try:
                yield humming(n, k, recipe), None
            except ImportError as error:
                print(f"humming is left out: {error}", flush=True)
                return


@dataclass(frozen=True)
class Timed:
    """A graph of `launches`, which keep what it reads: the next capture unmaps memory that nobody holds."""

    graph: torch.cuda.CUDAGraph
    launches: Sequence[Launch]

    def us(self) -> float:
        """Microseconds a launch of one replay."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / len(self.launches)


def graph_of(launches: Sequence[Launch], least_us: float) -> Timed:
    """The launches, each of `least_us` or more, repeated up to GRAPH_US."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    launches = list(launches) * math.ceil(GRAPH_US / least_us / len(launches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    return Timed(graph, launches)


def time_in_turn(timed: Sequence[Timed]) -> list[float]:
    """Median microseconds a launch of each, the graphs replayed one after the other REPLAYS times."""
    rounds = [[one.us() for one in timed] for _ in range(REPLAYS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def row(system: System, m: int, n: int, k: int, us: float) -> Row:
    name = system.recipe.partition("+")[0]
    weight_bits = {"bf16": 16.0, "w8a8-fp8": 8.0}.get(name) or float(
        Qtile((n, k), Recipe.parse(name).weight_chain()).bits_per_element
    )
    x_bytes = 2 if name in ("bf16", "w4a16-g128") or "+" in system.recipe else 1
    peak = BF16_TFLOPS if name in ("bf16", "w4a16-g128") else INT8_TOPS
    flops, nbytes = 2.0 * m * n * k, n * k * weight_bits / 8 + m * k * x_bytes + 2 * m * n
    least = max(flops / peak, nbytes / READ_TBPS) / 1e6
    return {
        "system": system.name, "op": "quantize+gemm" if "+" in system.recipe else "gemm", "recipe": name,
        "m": m, "n": n, "k": k, "us": round(us, 2), "tbps": round(nbytes / us / 1e6, 3),
        "tops": round(flops / us / 1e6, 1), "roof": round(least / us, 3), "flops": flops, "bytes": nbytes,
    }  # fmt: skip


def shape_rows(n: int, k: int, tokens: Sequence[int], wanted: Sequence[str]) -> Iterator[Row]:
    there = list(systems(n, k, wanted))
    for m in tokens:
        least_us = max(2.0 * m * n * k / INT8_TOPS, n * k / 2 / READ_TBPS) / 1e6
        graphs = [graph_of(system.make(m), least_us) for system, _ in there]
        for (system, ours), us in zip(there, time_in_turn(graphs), strict=True):
            found = row(system, m, n, k, us)
            if ours is not None:
                found |= {"kernel": ours.variant(m), "error": round(ours.error(m), 6)}
            yield found
        for recipe in ("w4a8-g128", "w4a8-chn"):
            if m in TOKENS and (recipe, n, k) in QSERVE_US:
                us = QSERVE_US[recipe, n, k][TOKENS.index(m)]
                yield row(System("qserve, another day", recipe, lambda _: []), m, n, k, us)
        del graphs


def wrong(rows: Sequence[Row]) -> list[Row]:
    """Rows of ours beyond rounding. With 16-bit activations weights and scales are rounded to bf16 too."""
    return [
        r
        for r in rows
        if not float(str(r.get("error", 0))) < (0.008 if r["recipe"] == "w4a16-g128" else 0.004)
    ]


def summary(rows: Sequence[Row]) -> str:
    """Microseconds by cell, best peer of this run, and the ratio of ours to it (over one: ours is faster)."""
    cells: dict[tuple[object, ...], dict[str, float]] = {}
    for r in rows:
        if r["op"] == "gemm":
            cell = cells.setdefault((r["n"], r["k"], r["m"]), {})
            cell[f"{r['system']} {r['recipe']}"] = float(str(r["us"]))
    ours = [f"tessera {recipe}" for recipe in RECIPES]
    lines = ["| N x K, M | " + " | ".join(RECIPES) + " | best peer | g128 to it |", "|---" * 7 + "|"]
    ratios = []
    for (n, k, m), cell in cells.items():
        peers = {name: us for name, us in cell.items() if not name.startswith(("tessera", "qserve"))}
        if not peers or ours[0] not in cell:
            continue
        best = min(peers, key=lambda name: peers[name])
        ratios.append(peers[best] / cell[ours[0]])
        shown = " | ".join(f"{cell[name]:.1f}" if name in cell else "" for name in ours)
        lines.append(f"| {n}x{k}, {m} | {shown} | {peers[best]:.1f} {best} | {ratios[-1]:.2f} |")
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(f"geometric mean {mean:.3f}, least {min(ratios):.3f} over {len(ratios)} cells")
    return "\n".join(lines)


def pairs(text: str) -> list[tuple[int, int]]:
    return [(int(n), int(k)) for n, k in (item.split("x") for item in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=pairs, default=SHAPES)
    parser.add_argument("--tokens", type=lambda text: [int(m) for m in text.split(",")], default=TOKENS)
    parser.add_argument("--systems", default="tessera,torch,humming")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gemm_h200.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    rows: list[Row] = []
    started = time.perf_counter()
    for n, k in args.shapes:
        for found in shape_rows(n, k, args.tokens, args.systems.split(",")):
            rows.append(found)
            shown = ("system", "recipe", "m", "n", "k", "us", "tops", "roof", "kernel")
            print("  ".join(f"{found[name]}" for name in shown if name in found), flush=True)
        torch.cuda.empty_cache()
        write_results(args.out, rows)
        print(f"{n}x{k} done at {time.perf_counter() - started:.1f} s", flush=True)
    print(summary(rows))
    for found in wrong(rows):
        print(f"WRONG: {found}")
    if wrong(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
