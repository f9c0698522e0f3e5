"""What it costs to make an operand of a matrix product out of stored codes, in instructions per weight.

Lanes of one thread: one 32-bit instruction that handles four 8-bit weights counts 1/4. Three pipes, by their
rate on sm_80 to sm_90 (`benchmarks/results/probe_h200.json`): the integer pipe (LOP3, SHF, PRMT, IADD3, I2F;
64 lanes a clock and SM), the integer multiply-add (IMAD; 64) and the floating one (FFMA, HFMA2; 128).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from tessera.spec import DType, Float, Grid


@dataclass(frozen=True, slots=True)
class Cost:
    """Instructions on the integer pipe, integer multiply-adds, floating multiply-adds."""

    alu: float = 0.0
    imad: float = 0.0
    fma: float = 0.0

    def __add__(self, other: Self) -> "Cost":
        return Cost(self.alu + other.alu, self.imad + other.imad, self.fma + other.fma)

    def __mul__(self, times: float) -> "Cost":
        return Cost(self.alu * times, self.imad * times, self.fma * times)

    @property
    def issued(self) -> float:
        return self.alu + self.imad + self.fma

    def __str__(self) -> str:
        parts = [f"{v:.3g} {n}" for n, v in (("ALU", self.alu), ("IMAD", self.imad), ("FMA", self.fma)) if v]
        return " + ".join(parts) or "0"


NOTHING: Final = Cost()

UNPACK_INT8: Final = {1: Cost(15 / 32), 2: Cost(7 / 16), 4: Cost(3 / 8), 8: NOTHING}
"""Fields of a word to bytes: an AND each, and a SHF for all but the first (AND, SHR, AND for 8 weights of 4
bits).
"""

UNPACK_FP16: Final = {1: Cost(9 / 16), 2: Cost(9 / 16), 4: Cost(5 / 8), 8: Cost(1 / 2)}
"""Fields to halves that carry a bias (1024 + q): LOP3 with the exponent or'ed in, SHF; PRMT for bytes."""

PLANE: Final = {"int8": Cost(1 / 4), "fp16": Cost(1 / 2)}
"""Joining a plane of further bits (3 = 2 + 1): one LOP3 for a register of weights."""

UNBIAS: Final = Cost(fma=1 / 2)
"""HSUB2 that takes the bias off, and a zero point with it at no cost."""

LOOKUP: Final = {"int8": Cost(11 / 8), "fp16": Cost(2.0)}
"""A table of 16 in registers by PRMT: bytes as in CUTLASS's mixed-input example; halves as two byte tables.
Tables of 32 to 256 go through shared memory, one load a weight; that has no pipe here and is priced alike.
"""

SMALL_FLOAT: Final = Cost(1.0)
"""fp4, fp6 or fp8 to halves: shift, mask and or for two, and the exponent's bias by the scale (estimate)."""

REGISTER_FP16: Final = {
    "scale": Cost(fma=1 / 2),
    "shift": Cost(fma=1 / 2),
    "affine_zero": Cost(fma=1.0),
    "affine_min": Cost(fma=1 / 2),
}
"""A step on two halves: HMUL2, HADD2, HSUB2 and HMUL2 (exact, as Marlin), HFMA2."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a step on four bytes in a register, and whose it is."""

    name: str
    cost: Cost


REGISTER_INT8: Final[dict[str, tuple[Way, ...]]] = {
    "scale": (Way("multiply lanes", Cost(imad=1 / 4)),),
    "shift": (Way("add 16 - z, restore the sign (Humming)", Cost(alu=1 / 2)),),
    "affine_min": (Way("one multiply-add, lanes stay in 0..255 (ours)", Cost(imad=1 / 4)),),
    "affine_zero": (
        Way("one multiply-add of a biased lane, then XOR (LiquidQuant)", Cost(alu=1 / 4, imad=1 / 4)),
        Way("multiply, then subtract lane by lane (QServe)", Cost(alu=11 / 8, imad=1 / 4)),
        Way("through fp16 and back (QQQ)", Cost(alu=7 / 8, fma=1.0)),
    ),
}
"""Ways of every integer step, cheapest first. Lane-wise subtraction has no instruction since sm_30: it is
emulated in five to six."""


def unpack(codes: DType, target: str) -> Cost:
    """Codes to lanes of the target ("int8", "fp16"): integers of any width, small floats."""
    if isinstance(codes, Float):
        return NOTHING if codes.bits >= 16 or target == "fp8" else SMALL_FLOAT
    table = UNPACK_INT8 if target == "int8" else UNPACK_FP16
    total, rest, planes = NOTHING, codes.bits, 0
    for width in (8, 4, 2, 1):
        if rest >= width:
            total, rest, planes = total + table[width], rest - width, planes + 1
    return total + PLANE.get(target, NOTHING) * (planes - 1)


def in_registers(codes: DType, steps: Sequence[str], target: str, *, bias_corrected: bool) -> Cost:
    """One weight from its codes through `steps` (names of `spec` steps) to a lane of the target.

    `bias_corrected` says that the product's row sums take a constant bias off the accumulators anyway, so
    that biased halves may go into the product as they are.
    """
    if isinstance(codes, Grid) and "lookup" in steps:
        after = steps[steps.index("lookup") + 1 :]
        return LOOKUP[target] + _steps(after, target)
    cost = unpack(codes, target) + _steps(steps, target)
    biased = target == "fp16" and isinstance(codes, Grid)
    first = next((s for s in steps if s != "cast"), None)
    if biased and first not in ("shift", "affine_zero") and (first or not bias_corrected):
        cost = cost + UNBIAS
    return cost


def _steps(steps: Sequence[str], target: str) -> Cost:
    cost = NOTHING
    for step in steps:
        if step != "cast":
            cost = cost + (REGISTER_INT8[step][0].cost if target == "int8" else REGISTER_FP16[step])
    return cost
