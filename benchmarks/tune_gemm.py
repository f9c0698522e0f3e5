"""Times variants of the integer GEMMs and writes the fastest to kernels/cuda/gemm/measured.py.

    python benchmarks/tune_gemm.py [--formats g128,chn,w8] [--shapes 28672x4096] [--tokens 1,32]
        [--candidates 9] [--json benchmarks/results/tune_gemm_h200.json] [--out measured.py]
    python benchmarks/tune_gemm.py --written    # without a GPU: measured.py again from the JSON

Needs a GPU and a minute and a half. For each shape and token count the variants that the cost model ranks
first are timed as in gemm_h200.py. Of those within NEAR of the fastest, the one that wins most cells is
taken: a layer then needs few kernels. The JSON keeps the KEPT fastest of each cell, and cells that are not
measured again; what the choices of the model alone would lose is printed.
"""

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gemm_h200 import SHAPES, pairs
from gemm_peers import DTYPE, copies
from gemm_timing import graph_of, time_in_turn
from gpu_results import Row, write_results
from tessera.engine.dummy import random_weight
from tessera.kernels.cuda import device
from tessera.kernels.cuda.gemm import choose, measured
from tessera.kernels.cuda.gemm.choose import BUCKETS, Choice, Product
from tessera.kernels.cuda.gemm.scratch import scratch
from tessera.kernels.cuda.gemm.weights import FORMATS, Format, PackedWeights, pack
from tessera.kernels.cuda.launch import prepare
from tessera.kernels.cuda.tiled_rows import empty_tiled
from tessera.kernels.types import TiledRows
from tessera.spec import Chain, Qtile, Recipe

CHAINS: dict[str, Chain] = {
    **{f"g{g}": Recipe.parse(f"w4a8-g{g}").weight_chain() for g in (32, 64, 128)},
    "chn": Recipe.parse("w4a8-chn").weight_chain(),
    "w8": Recipe.parse("w8a8-chn").weight_chain(),
}
HEAD = (128256, 4096)
"""Measured for the 8-bit format only, and for as many tokens as a step samples."""
CANDIDATES = 9
ARCH = "sm_90a"
H200 = choose.Machine("NVIDIA H200", 132, 4.447e6, 1782)
"""What `choose.machine` says of one."""
NEAR = 1.015
KEPT = 6
RESULTS = Path(__file__).parent / "results" / "tune_gemm_h200.json"

Cell = tuple[str, int, int, int]
"""Format, N, K, M."""
Table = dict[tuple[str, int, int], dict[int, str]]


def cell_of(row: Row) -> Cell:
    return str(row["format"]), int(row["n"]), int(row["k"]), int(row["m"])


def by_cell(rows: Sequence[Row]) -> dict[Cell, list[Row]]:
    """Rows of each cell, the fastest first."""
    cells: dict[Cell, list[Row]] = {}
    for row in sorted(rows, key=lambda row: float(row["us"])):
        cells.setdefault(cell_of(row), []).append(row)
    return cells


# ------------------------------------------------------------------------------------------------ timing
def rows_of(tokens: int, k: int) -> TiledRows:
    x = empty_tiled(tokens, k)
    x.codes.random_(-127, 128)
    x.scale.fill_(0.01)
    x.row_sum.zero_()
    return x


def candidates(product: Product, on: choose.Machine, count: int) -> list[Choice]:
    """The variants that the model ranks first, and up to 256 tokens a third as many of each family."""
    ranked = [(c.family.cost_us(c.variant, product, on), c) for c in choices().values()]
    able = [choice for us, choice in sorted(ranked, key=lambda item: item[0]) if us < math.inf]
    kept = able[: count if product.tokens < 1024 else count // 2]
    for family in choose.FAMILIES:
        if product.tokens <= 256:
            kept += [c for c in able if c.family is family][: count // 3]
    return list(dict.fromkeys(kept))


def launch(choice: Choice, weights: PackedWeights, x: TiledRows) -> Tensor:
    y = torch.empty(x.shape[0], weights.tile.shape[0], device="cuda", dtype=DTYPE)
    choice.family.launch(choice.variant, weights, x, y, None, scratch(0))
    return y


def time_cell(weights: Sequence[PackedWeights], tokens: int, on: choose.Machine, count: int) -> list[Row]:
    """Candidates with their times, the fastest first; a variant that a shape refuses is left out."""
    form, (n, k) = weights[0].form, weights[0].tile.shape
    product, x = Product(form, n, k, tokens), rows_of(tokens, k)
    graphs, there = [], []
    for choice in candidates(product, on, count):
        try:
            launches = [partial(launch, choice, w, x) for w in weights]
            graphs.append(graph_of(launches, product.nbytes / on.bytes_us))
            there.append(choice)
        except Exception as error:
            print(f"{choice} at {tokens}x{n}x{k} {form}: {error}", flush=True)
    rows: list[Row] = [
        {
            "format": str(form), "n": n, "k": k, "m": tokens, "variant": str(choice),
            "us": round(found.us, 2), **found.card,
        }
        for choice, found in zip(there, time_in_turn(graphs), strict=True)
    ]  # fmt: skip
    rows.sort(key=lambda row: float(row["us"]))
    shown = "  ".join(f"{row['variant']} {row['us']:.2f}" for row in rows[:5])
    print(f"{form} {n}x{k} {tokens}: {shown}", flush=True)
    return rows


def measure(
    form: Format, shape: tuple[int, int], tokens: Sequence[int], on: choose.Machine, count: int
) -> Iterator[Row]:
    weight = random_weight(Qtile(shape, CHAINS[str(form)]), torch.Generator("cuda").manual_seed(0))
    first = pack(weight)
    weights = [first, *(replace(first, tiles=first.tiles.clone()) for _ in range(copies(first.nbytes) - 1))]
    for m in tokens:
        if m <= (512 if shape == HEAD else 8192):
            yield from time_cell(weights, m, on, count)


# ---------------------------------------------------------------------------------------------- the table
def best(rows: Sequence[Row]) -> Table:
    """The variant that is taken for each cell."""
    near = {
        cell: [str(row["variant"]) for row in found if row["us"] <= NEAR * found[0]["us"]]
        for cell, found in by_cell(rows).items()
    }
    wins = Counter(name for names in near.values() for name in names)
    table: Table = {}
    for (form, n, k, m), names in near.items():
        table.setdefault((form, n, k), {})[m] = max(names, key=lambda name: wins[name])
    return table


def source(name: str, table: Table) -> str:
    """The text of measured.py for the device `name`."""
    lines = [
        '"""Variants that were fastest where measured: {device: {(format, N, K): {tokens: variant}}}.',
        "", "Written by benchmarks/tune_gemm.py.", '"""', "", "from typing import Final", "",
        "# fmt: off", "MEASURED: Final[dict[str, dict[tuple[str, int, int], dict[int, str]]]] = {",
        f'    "{name}": {{',
    ]  # fmt: skip
    for (form, n, k), by_tokens in sorted(table.items()):
        lines.append(f'        ("{form}", {n}, {k}): {{')
        items = [f'{m}: "{variant}",' for m, variant in sorted(by_tokens.items())]
        lines += [f"            {' '.join(items[i : i + 3])}" for i in range(0, len(items), 3)]
        lines.append("        },")
    return "\n".join([*lines, "    },", "}", ""])


def measured_source(path: Path) -> str:
    """The text of measured.py from the file of timings at `path`."""
    return source(json.loads(path.read_text())["machine"]["name"], best(stored(path)))


def choices() -> dict[str, Choice]:
    """Every variant of Hopper, by name."""
    return {str(v): Choice(f, v) for f in choose.FAMILIES if ARCH in f.archs for v in f.variants}


def model_report(rows: Sequence[Row]) -> str:
    """How far the choice of the model, as it is now, is behind the fastest, where both were timed."""
    forms, able = {str(form): form for form in FORMATS}, choices()
    losses, errors = [], []
    for (form, n, k, m), found in by_cell(rows).items():
        product = Product(forms[form], n, k, m)
        timed = [(float(row["us"]), able[row["variant"]]) for row in found]
        costs = [choice.family.cost_us(choice.variant, product, H200) for _, choice in timed]
        losses.append((timed[costs.index(min(costs))][0] / timed[0][0] - 1, (form, n, k, m)))
        errors += [math.log(cost / us) for cost, (us, _) in zip(costs, timed, strict=True)]
    mean, worst = statistics.fmean(loss for loss, _ in losses), max(losses)
    spread = math.sqrt(statistics.fmean(e * e for e in errors))
    return (
        f"{len(losses)} cells, {len(errors)} timings: the model's choice is {mean:.1%} slower than the "
        f"fastest, within 5 % in {sum(loss <= 0.05 for loss, _ in losses)}, {worst[0]:.0%} at worst "
        f"({worst[1]}); its microseconds are {math.exp(statistics.fmean(errors)):.3f} of the measured, "
        f"RMS {spread:.1%}"
    )


def stored(path: Path) -> list[Row]:
    """Rows of the file at `path`, if there is one, of variants that there are."""
    able = choices()
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in rows if row["variant"] in able]


def merged(path: Path, rows: Sequence[Row]) -> list[Row]:
    """The KEPT fastest of each cell in `rows`, and of the file's cells that are not among them."""
    cells = by_cell(stored(path)) | by_cell(rows)
    return [row for cell in sorted(cells) for row in cells[cell][:KEPT]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", type=lambda text: text.split(","), default=["g128", "chn", "w8"])
    parser.add_argument("--shapes", type=pairs, default=[])
    parser.add_argument("--tokens", type=lambda text: [int(m) for m in text.split(",")], default=BUCKETS)
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=Path(measured.__file__))
    parser.add_argument("--written", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.written:
        with torch.inference_mode():
            tune(args.formats, args.shapes, args.tokens, args.candidates, args.json)
    args.out.write_text(measured_source(args.json))
    print(model_report(stored(args.json)))


def tune(
    formats: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    tokens: Sequence[int],
    count: int,
    path: Path,
) -> None:
    """Times what was asked for and merges it into the file at `path`, shape by shape."""
    started = time.perf_counter()
    on = choose.machine(device.current())
    print(on, flush=True)
    chosen = [(form, shape) for name in formats for form, shape in cases(name, shapes)]
    products = [Product(form, *shape, m) for form, shape in chosen for m in tokens]
    try:
        prepare(
            {c.family.instance(c.variant, p.form, DTYPE) for p in products for c in candidates(p, on, count)}
        )
    except Exception as error:  # all others are compiled; its cells leave it out
        print(f"a candidate does not compile: {error}", flush=True)
    print(f"compiled at {time.perf_counter() - started:.1f} s", flush=True)
    rows: list[Row] = []
    for form, shape in chosen:
        rows += measure(form, shape, tokens, on, count)
        torch.cuda.empty_cache()
        write_results(path, merged(path, rows))
        print(f"{form} {shape} done at {time.perf_counter() - started:.1f} s", flush=True)


def cases(name: str, shapes: Sequence[tuple[int, int]]) -> Iterator[tuple[Format, tuple[int, int]]]:
    form = next(form for form in FORMATS if str(form) == name)
    for shape in shapes or (*SHAPES, *([HEAD] if form.bits == 8 else [])):
        yield form, shape


if __name__ == "__main__":
    main()
