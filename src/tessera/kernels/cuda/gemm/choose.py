"""Which variant of which GEMM family runs how many tokens: a closed-form cost, and measurements above it.

A launch takes the longer of moving its bytes and of the busiest SM's steps, and what starts and ends it. That
has to rank variants, not to predict microseconds. Shapes measured on a device (`measured.py`) follow that.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from tessera.kernels.cuda import driver
from tessera.kernels.cuda.device import FAMILIES as FAMILY_ARCHS
from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.gemm import small, wide
from tessera.kernels.cuda.gemm.measured import MEASURED
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.gemm.weights import ROWS, Format, PackedWeights
from tessera.kernels.cuda.launch import Kernel
from tessera.kernels.cuda.tiled_rows import ATOM, STEP
from tessera.kernels.types import TiledRows

BUCKETS: Final = (
    1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384,
)  # fmt: skip
"""Token counts that have a variant of their own. Others take that of the next one, more that of the last."""


def bucket(tokens: int) -> int:
    """Index of the one of BUCKETS whose choice serves `tokens`."""
    return min(bisect_left(BUCKETS, tokens), len(BUCKETS) - 1)


Launch = Callable[[Any, PackedWeights, TiledRows, Tensor, Tensor | None, Scratch], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the cost needs of a device: SMs, bytes a microsecond from memory, clocks a microsecond."""

    name: str
    sms: int
    bytes_us: float
    clock: float


@dataclass(frozen=True, slots=True)
class Product:
    """y [tokens, n] = x W^T with W [n, k] stored as `form`."""

    form: Format
    n: int
    k: int
    tokens: int

    @property
    def steps(self) -> int:
        return -(-self.k // STEP)

    @property
    def nbytes(self) -> int:
        """Weights, activations and outputs, each once."""
        tiles = -(-self.n // ROWS) * self.steps
        return tiles * self.form.tile_bytes + self.tokens * (self.k + 2 * self.n)


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel source: its variants, how one is named and launched, and what a launch costs."""

    archs: tuple[str, ...]
    variants: tuple[Any, ...]
    instance: Callable[[Any, Format, torch.dtype], Kernel]
    launch: Launch
    cost_us: Callable[[Any, Product, Machine], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant and the family that launches it."""

    family: Family
    variant: Any

    def __str__(self) -> str:
        return str(self.variant)


WIDE_LAUNCH: Final = (1.67, 0.928)
"""Microseconds of a launch in a graph besides its work, and the share of the bandwidth that it gets."""
SMALL_LAUNCH: Final = (1.8, 0.9)
"""Microseconds as above, and the share of the clocks that are not hidden by the launch before."""


def wide_us(variant: wide.Variant, product: Product, machine: Machine) -> float:
    """The plan's clocks beside the bytes; numbers fitted on an H200 (notes/2026-11-30-gemm-wide.md)."""
    p = product
    cut = wide.plan(variant, p.form, p.n, p.k, p.tokens, machine.sms)
    start, share = WIDE_LAUNCH
    return start + _overlapped(cut.clocks / machine.clock, p.nbytes / (share * machine.bytes_us))


def small_us(variant: small.Variant, product: Product, machine: Machine) -> float:
    """Clocks of the busiest block or of the memory, and about what a launch costs in a graph. Infinite where
    the ring of this variant does not fit.
    """
    if variant.stages(product.form, small.smem_limit()) < 2:
        return math.inf
    n, k, sms = product.n, product.k, machine.sms
    tokens = -(-product.tokens // ATOM) * ATOM
    blocks = small.grid(n, k, tokens, sms, variant, product.form)
    units = -(-tokens // variant.tokens) * -(-n // variant.rows) * product.steps
    clocks = small.clocks(units, product.steps, blocks, sms, variant, product.form)
    start, share = SMALL_LAUNCH
    return start + max(share * clocks / machine.clock, product.nbytes / machine.bytes_us)


def _overlapped(a: float, b: float) -> float:
    """A little above the larger of two times that hide each other."""
    return float((a**4 + b**4) ** 0.25)


WIDE: Final = Family(
    archs=FAMILY_ARCHS["sm90"],
    variants=wide.VARIANTS,
    instance=wide.instance,
    launch=wide.launch,
    cost_us=wide_us,
)
SMALL: Final = Family(FAMILY_ARCHS["sm80"], small.ANYWHERE, small.instance, small.launch, small_us)
SMALL_HOPPER: Final = Family(FAMILY_ARCHS["sm90"], small.VARIANTS, small.instance, small.launch, small_us)
FAMILIES: Final = (WIDE, SMALL, SMALL_HOPPER)


@cache
def machine(info: DeviceInfo) -> Machine:
    """Bandwidth is 93 % of what the memory's clock and width give, and the clock 90 % of the highest."""
    clock = driver.device_attribute(driver.ATTR_MEMORY_CLOCK_KHZ, info.index) * 1e3
    bits = driver.device_attribute(driver.ATTR_MEMORY_BUS_BITS, info.index)
    return Machine(info.name, info.sms, 0.93e-6 * 2 * clock * bits / 8, 0.9 * info.clock_mhz)


def choose(product: Product, arch: str, on: Machine) -> Choice:
    """The variant for one product: measured, or else the cheapest."""
    able = [Choice(f, v) for f in FAMILIES if arch in f.archs for v in f.variants]
    measured = MEASURED.get(on.name, {}).get((str(product.form), product.n, product.k), {})
    name = measured.get(product.tokens)
    for choice in able:
        if str(choice) == name:
            return choice
    return min(able, key=lambda choice: choice.family.cost_us(choice.variant, product, on))


def plan(form: Format, n: int, k: int, arch: str, on: Machine) -> tuple[Choice, ...]:
    """A choice for each of BUCKETS."""
    return tuple(choose(Product(form, n, k, tokens), arch, on) for tokens in BUCKETS)
