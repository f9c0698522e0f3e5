"""What the kernels of this package cost and reach on an H200, as measured; stands for GPUs nobody measured.

`kernels.json`, which `benchmarks/planner_h200.py --calibrate` writes from traced steps and timed products:

    {"version": 1, "source": "...", "date": "2026-11-30",
     "seconds": {"attention": 7e-6, ...},
     "products": {"int8": {"seconds": 1.3e-6, "filled": 5e-6, "bandwidth": 1.0, ...}, ...}}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tessera.hardware.device import Device
from tessera.hardware.errors import HardwareFileError

VERSION: Final = 1
FILE: Final = Path(str(files("tessera.hardware") / "kernels.json"))

KERNEL_SECONDS: Final = 2.15e-6
"""One more plain kernel in a CUDA graph on an H200 (benchmarks/results/probe_h200.json). Kinds of kernels
cost multiples of it, so a device where it is longer has them all longer.
"""

SHEET_BANDWIDTH: Final = 4.5 / 4.8
SHEET_PEAK: Final = 739 / 989
"""Of a data sheet's values, what an H200's best kernels reach (measured.json): by reads and bf16 products."""

KINDS: Final = (
    "attention", "norm", "norm_int8", "activation", "activation_int8", "rows_int8", "rotary", "ends",
)  # fmt: skip
"""Kernels of a decode step beside its products. Those that end in int8 write int8 rows for the next product;
"ends" is what a step has once: inputs, embedding, sampling, and until the next one begins.
"""

TILE: Final = 64
"""Tokens at which kernels of few tokens have a full tile."""

FAMILIES: Final = ("library", "mixed", "int8")
"""Products of 16-bit (or fp8) weights by the GPU's library, of 4-bit weights with 16-bit activations, and of
int8 rows with weights of 4 or 8 bits.
"""


@dataclass(frozen=True, slots=True)
class ProductCosts:
    """How products of one family run.

    seconds    of one beside its bytes and operations, for few tokens
    filled     seconds more for TILE tokens and above: tokens that come after the weights, tiles put together
               and stored; in proportion to the tokens below
    bandwidth  share of the bandwidth at which they read weights
    compute    share of the peak at which they multiply
    exposed    of reading and multiplying, the share of the shorter that the longer does not hide
    prefill    share of the peak that the products and the attention of a prefill keep up
    """

    seconds: float
    filled: float
    bandwidth: float
    compute: float
    exposed: float
    prefill: float


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Costs of all kernels: `seconds` of one by kind of KINDS, `products` by family of FAMILIES."""

    source: str
    date: str
    seconds: Mapping[str, float]
    products: Mapping[str, ProductCosts]


def relative_cost(kind: str, device: Device) -> float:
    """What a kernel of `kind` (of KINDS, or "product:" and a family) costs beside its bytes and operations,
    in multiples of the device's `kernel_seconds`. On a processor all kernels cost the same.
    """
    if device.kind == "cpu":
        return 1.0
    costs = kernel_costs()
    kind, _, family = kind.partition(":")
    seconds = costs.products[family].seconds if family else costs.seconds[kind]
    return seconds / KERNEL_SECONDS


@cache
def kernel_costs() -> KernelCosts:
    """Those that ship. Raises HardwareFileError."""
    return read_kernel_costs(FILE)


def read_kernel_costs(path: Path) -> KernelCosts:
    """Raises HardwareFileError naming the path where the file is not in the format."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["version"] != VERSION or raw["seconds"].keys() != set(KINDS):
            raise ValueError(f"version {VERSION} with seconds of {', '.join(KINDS)} is needed")
        products = {family: _products(raw["products"][family]) for family in FAMILIES}
        seconds = {kind: _number(raw["seconds"][kind]) for kind in KINDS}
        return KernelCosts(raw["source"], raw["date"], MappingProxyType(seconds), MappingProxyType(products))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HardwareFileError(f"{path}: {error!r}") from error


def _products(raw: Mapping[str, Any]) -> ProductCosts:
    return ProductCosts(**{field.name: _number(raw[field.name]) for field in fields(ProductCosts)})


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is not a number of at least 0")
    return float(value)
