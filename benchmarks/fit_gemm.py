"""Fits the constants of the GEMMs' cost models to timings of tune_gemm.py and prints them; needs no GPU.

    python benchmarks/fit_gemm.py wide [benchmarks/results/tune_gemm_h200.json ...]

What counts is the order of variants: the spread of predicted to measured within a cell, and little of how far
all of a cell are off, least where the card's power sets the clock. A random search from the constants as they
are, ten seconds for `wide` and two minutes for `small`. The best go into the modules by hand.
"""

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gpu_results import Row
from tessera.kernels.cuda.gemm import choose, small, wide
from tessera.kernels.cuda.gemm.choose import Choice, Product
from tessera.kernels.cuda.gemm.weights import FORMATS
from tune_gemm import H200, RESULTS, by_cell, choices, model_report, stored

CONSTANTS: Final[dict[str, list[tuple[ModuleType, str]]]] = {
    "wide": [
        (choose, "WIDE_LAUNCH"), (wide, "SECOND_CLOCKS"), (wide, "LATENCY_CLOCKS"), (wide, "COPY_CLOCKS"),
        (wide, "COPY_BYTES"), (wide, "RING_CLOCKS"), (wide, "MULTIPLY_RATE"), (wide, "END_CLOCKS"),
        (wide, "CUT_CLOCKS"),
    ],
    "small": [
        (choose, "SMALL_LAUNCH"), (small, "_STREAM"), (small, "_SHARE"), (small, "_HALF"), (small, "_INTO"),
        (small, "_UNIT"), (small, "_CUT"),
    ],
}  # fmt: skip
LEVEL = 0.25, 0.05
"""Weight of how far a cell as a whole is off, up to 256 tokens and above."""
FAR = 1.6
ROUNDS = 2000

Values = list[tuple[float, ...]]
Cells = list[tuple[Product, list[tuple[Choice, float]]]]


def get(names: Sequence[tuple[ModuleType, str]]) -> Values:
    found = (getattr(module, name) for module, name in names)
    return [value if isinstance(value, tuple) else (value,) for value in found]


def put(names: Sequence[tuple[ModuleType, str]], values: Values) -> None:
    for (module, name), value in zip(names, values, strict=True):
        setattr(module, name, value if len(value) > 1 else value[0])
    wide.plan.cache_clear()
    small.grid.cache_clear()


def cells_of(rows: Sequence[Row], family: str) -> Cells:
    """Cells with two or more timings of the family that are not FAR behind the fastest."""
    forms, able = {str(form): form for form in FORMATS}, choices()
    cells = []
    for (form, n, k, m), found in by_cell(rows).items():
        near = [r for r in found if r["variant"].startswith(family) and r["us"] < FAR * found[0]["us"]]
        timed = [(able[r["variant"]], float(r["us"])) for r in near]
        if len(timed) > 1:
            cells.append((Product(forms[form], n, k, m), timed))
    return cells


def loss(cells: Cells) -> float:
    """Root of the mean square of logarithms, levels of cells weighted down."""
    total, count = 0.0, 0
    for product, timed in cells:
        errors = [math.log(c.family.cost_us(c.variant, product, H200) / us) for c, us in timed]
        level = statistics.fmean(errors)
        total += sum((error - level) ** 2 for error in errors)
        total += LEVEL[product.tokens > 256] * len(errors) * level**2
        count += len(errors)
    return math.sqrt(total / count)


def changed(values: Values, step: float) -> Values:
    """Some of the values, each times about 1 + step or divided by it."""

    def moved(x: float) -> float:
        return x * math.exp(random.gauss(0, step)) if random.random() < 0.3 else x

    return [tuple(map(moved, value)) for value in values]


def rounded(values: Values) -> Values:
    return [tuple(float(f"{x:.3g}") for x in value) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=CONSTANTS)
    parser.add_argument("timings", type=Path, nargs="*", default=[RESULTS])
    args = parser.parse_args()
    rows: list[Any] = [row for path in args.timings for row in stored(path)]
    names, cells = CONSTANTS[args.family], cells_of(rows, args.family)
    random.seed(0)
    best, step = get(names), 0.3
    least = loss(cells)
    print(f"{len(cells)} cells; before: {least:.4f}; {model_report(rows)}")
    for i in range(ROUNDS):
        values = rounded(changed(best, step))
        put(names, values)
        if (found := loss(cells)) < least:
            least, best = found, values
        if i % 400 == 399:
            step *= 0.6
    put(names, best)
    print(f"after: {least:.4f}; {model_report(rows)}")
    for (module, name), value in zip(names, best, strict=True):
        print(f"{module.__name__.rpartition('.')[2]}.{name} = {value if len(value) > 1 else value[0]}")


if __name__ == "__main__":
    main()
