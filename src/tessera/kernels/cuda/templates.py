"""Every `__global__` template of the package and the instances that tests compile without a GPU.

A family adds its module to `FAMILIES`; the module holds `CASES: list[TemplateCase]`, made with `grid`.
By default the tests compile a sample in which every pair of parameter values of a family meets once;
`TESSERA_ALL_TEMPLATES=1` compiles all.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from tessera.kernels.jit.nvrtc import Instantiation

FAMILIES = (
    "tessera.kernels.cuda.check_templates",
    "tessera.kernels.cuda.op_templates",
    "tessera.kernels.cuda.gemm.small_templates",
    "tessera.kernels.cuda.gemm.wide_templates",
    "tessera.kernels.cuda.gemm.half_templates",
)

EVERYWHERE = ("sm_80", "sm_90a")
HOPPER = ("sm_90a",)


@dataclass(frozen=True)
class TemplateCase:
    """One instance and the architectures it must compile for. `sampled` marks the pairwise sample."""

    header: str
    expression: str
    archs: tuple[str, ...] = EVERYWHERE
    allowed_local_bytes: int = 0
    options: tuple[str, ...] = ()
    sampled: bool = True

    def instances(self) -> list[Instantiation]:
        return [
            Instantiation(self.header, self.expression, arch, self.options, self.allowed_local_bytes)
            for arch in self.archs
        ]


def grid(
    header: str,
    expression: str,
    axes: Mapping[str, Sequence[object]],
    archs: tuple[str, ...] = EVERYWHERE,
    allowed_local_bytes: int = 0,
) -> list[TemplateCase]:
    """Every combination of `axes` formatted into `expression`, e.g. `"tessera::f<{n}, {t}>"`.

    Booleans become `true` and `false`.
    """
    combinations = list(itertools.product(*axes.values()))
    chosen = _pairwise(combinations)
    return [
        TemplateCase(
            header,
            expression.format(**dict(zip(axes, map(_cpp, values), strict=True))),
            archs,
            allowed_local_bytes,
            sampled=k in chosen,
        )
        for k, values in enumerate(combinations)
    ]


def _cpp(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairwise(combinations: Sequence[tuple[object, ...]]) -> set[int]:
    """Indices of a greedy choice in which every pair of values of two axes occurs together."""
    # With a single axis there are no pairs, and every value stands alone.
    together = 2 if combinations and len(combinations[0]) > 1 else 1
    pairs = [set(itertools.combinations(enumerate(c), together)) for c in combinations]
    missing = {pair for found in pairs for pair in found}
    chosen: set[int] = set()
    while missing:
        best = max(range(len(pairs)), key=lambda k: len(pairs[k] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


@cache
def templates() -> list[TemplateCase]:
    """The instances of every family."""
    return [case for family in FAMILIES for case in import_module(family).CASES]
