"""Times variants of the integer GEMMs and writes the fastest to kernels/cuda/gemm/measured.py.

    python benchmarks/tune_gemm.py [--formats g128,chn,w8] [--shapes 28672x4096] [--out measured.py]

For each shape and token count the variants that the cost model ranks first are timed as in gemm_h200.py. Of
those within NEAR of the fastest, the one that wins most cells is taken: a layer then needs few kernels. All
timings land beside it as JSON, so that the model can be compared with them.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from gemm_h200 import GRAPH_US, SHAPES, graph_of, time_in_turn
from gemm_peers import DTYPE, copies
from gpu_results import Row, write_results
from tessera.engine.dummy import random_weight
from tessera.kernels.cuda import device
from tessera.kernels.cuda.gemm import choose
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
NEAR = 1.015


def rows_of(tokens: int, k: int) -> TiledRows:
    x = empty_tiled(tokens, k)
    x.codes.random_(-127, 128)
    x.scale.fill_(0.01)
    x.row_sum.zero_()
    return x


def candidates(product: Product, on: choose.Machine) -> list[Choice]:
    """The variants that the model ranks first, and up to 256 tokens a third as many of each family."""
    ranked = [
        (choice.family.cost_us(choice.variant, product, on), choice)
        for choice in (Choice(f, v) for f in choose.FAMILIES if ARCH in f.archs for v in f.variants)
    ]
    able = [choice for us, choice in sorted(ranked, key=lambda item: item[0]) if us < math.inf]
    kept = able[: CANDIDATES if product.tokens < 1024 else CANDIDATES // 2]
    for family in choose.FAMILIES:
        if product.tokens <= 256:
            kept += [c for c in able if c.family is family][: CANDIDATES // 3]
    return list(dict.fromkeys(kept))


def time_cell(
    weights: list[PackedWeights], form: Format, tokens: int, on: choose.Machine
) -> Iterator[tuple[str, float, float]]:
    """(variant, measured, predicted) in microseconds; a variant that a shape refuses is left out."""
    n, k = weights[0].tile.shape
    product, x = Product(form, n, k, tokens), rows_of(tokens, k)
    graphs, there = [], []
    for choice in candidates(product, on):

        def launches(choice: Choice = choice) -> list[object]:
            def run(w: PackedWeights) -> torch.Tensor:
                y = torch.empty(tokens, n, device="cuda", dtype=DTYPE)
                choice.family.launch(choice.variant, w, x, y, None, scratch(0))
                return y

            return [lambda w=w: run(w) for w in weights]

        try:
            graphs.append(graph_of(launches(), product.nbytes / on.bytes_us))
            there.append(choice)
        except Exception as error:
            print(f"{choice} at {tokens}x{n}x{k} {form}: {error}", flush=True)
    for choice, us in zip(there, time_in_turn(graphs), strict=True):
        yield str(choice), us, choice.family.cost_us(choice.variant, product, on)


def measure(form: Format, n: int, k: int, on: choose.Machine) -> Iterator[Row]:
    weight = random_weight(Qtile((n, k), CHAINS[str(form)]), torch.Generator("cuda").manual_seed(0))
    first = pack(weight)
    weights = [first, *(replace(first, tiles=first.tiles.clone()) for _ in range(copies(first.nbytes) - 1))]
    most = 512 if (n, k) == HEAD else 8192
    for tokens in (b for b in BUCKETS if b <= most):
        found = sorted(time_cell(weights, form, tokens, on), key=lambda item: item[1])
        shown = "  ".join(f"{name} {us:.2f} ({guess:.1f})" for name, us, guess in found[:5])
        print(f"{form} {n}x{k} {tokens}: {shown}", flush=True)
        for name, us, guess in found:
            yield {
                "format": str(form), "n": n, "k": k, "m": tokens, "variant": name, "us": round(us, 2),
                "model_us": round(guess, 2),
            }  # fmt: skip


def best(rows: list[Row]) -> dict[tuple[str, int, int], dict[int, str]]:
    cells: dict[tuple[str, int, int, int], dict[str, float]] = {}
    for r in rows:
        cell = (str(r["format"]), int(str(r["n"])), int(str(r["k"])), int(str(r["m"])))
        cells.setdefault(cell, {})[str(r["variant"])] = float(str(r["us"]))
    near = {
        cell: [name for name, us in times.items() if us <= NEAR * min(times.values())]
        for cell, times in cells.items()
    }
    wins = Counter(name for names in near.values() for name in names)
    table: dict[tuple[str, int, int], dict[int, str]] = {}
    for (form, n, k, m), names in near.items():
        table.setdefault((form, n, k), {})[m] = max(names, key=lambda name: wins[name])
    return table


def source(name: str, table: dict[tuple[str, int, int], dict[int, str]]) -> str:
    lines = [
        '"""Variants that were fastest where measured: {device: {(format, N, K): {tokens: variant}}}.',
        "", "Written by benchmarks/tune_gemm.py.", '"""', "", "from typing import Final", "",
        "# fmt: off", "MEASURED: Final[dict[str, dict[tuple[str, int, int], dict[int, str]]]] = {",
        f'    "{name}": {{',
    ]  # fmt: skip
    for key, by_tokens in table.items():
        form, n, k = key
        lines.append(f'        ("{form}", {n}, {k}): {{')
        items = [f'{m}: "{variant}",' for m, variant in sorted(by_tokens.items())]
        lines += [f"            {' '.join(items[i : i + 3])}" for i in range(0, len(items), 3)]
        lines.append("        },")
    return "\n".join([*lines, "    },", "}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="g128,chn,w8")
    parser.add_argument(
        "--shapes", type=lambda text: [tuple(map(int, s.split("x"))) for s in text.split(",")]
    )
    parser.add_argument("--out", type=Path, default=Path("measured.py"))
    args = parser.parse_args()
    info = device.current()
    on = choose.machine(info)
    print(on, flush=True)
    forms = {str(form): form for form in FORMATS}
    chosen = [forms[name] for name in args.formats.split(",")]
    products = [Product(form, *shape, m) for form in chosen for shape in SHAPES for m in BUCKETS]
    prepare({c.family.instance(c.variant, p.form, DTYPE) for p in products for c in candidates(p, on)})
    rows: list[Row] = []
    for form in chosen:
        shapes = list(args.shapes or SHAPES) + ([HEAD] if form.bits == 8 and not args.shapes else [])
        for n, k in shapes:
            rows += measure(form, n, k, on)
            torch.cuda.empty_cache()
            args.out.write_text(source(info.name, best(rows)))
    write_results(args.out.with_suffix(".json"), rows)
    print(f"graphs of {GRAPH_US} us; {len(rows)} timings")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
