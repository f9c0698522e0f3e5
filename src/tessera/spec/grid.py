"""Element types: integer grids (the codes of a quantized tensor) and floating-point storage types."""

from dataclasses import dataclass
from typing import Final

from tessera.spec.errors import SpecError

FLOAT_BITS: Final = {
    "f16": 16, "bf16": 16, "f32": 32,
    "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "f6e3m2": 6, "f6e2m3": 6, "f4e2m1": 4,
}  # fmt: skip
"""Storage bits. The small ones are named by exponent and mantissa bits, as in the OCP MX formats."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers low..high of `bits` bits, two's complement if `signed`.

    `narrow` drops the most negative code, so that a symmetric scale covers both ends (int8: -127..127).
    """

    bits: int
    signed: bool = False
    narrow: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise SpecError(f"grid of {self.bits} bits: 1 to 32 are possible")
        if self.narrow and not (self.signed and self.bits >= 2):
            raise SpecError("a narrow grid is signed and has at least 2 bits")

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) + self.narrow if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    def __contains__(self, code: int) -> bool:
        return self.low <= code <= self.high

    def __str__(self) -> str:
        return f"{'s' if self.signed else 'u'}{self.bits}{'n' if self.narrow else ''}"


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point storage type, by name: one of FLOAT_BITS."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in FLOAT_BITS:
            raise SpecError(f"unknown float type {self.name!r}: one of {', '.join(FLOAT_BITS)}")

    @property
    def bits(self) -> int:
        return FLOAT_BITS[self.name]

    def __str__(self) -> str:
        return self.name


DType = Grid | Float

F16: Final = Float("f16")
BF16: Final = Float("bf16")
F32: Final = Float("f32")
E4M3: Final = Float("f8e4m3")
E5M2: Final = Float("f8e5m2")
U4: Final = Grid(4)
U8: Final = Grid(8)
S8: Final = Grid(8, signed=True)
S8N: Final = Grid(8, signed=True, narrow=True)
"""int8 without -128: what symmetric activations and weights use."""


def parse_dtype(text: str) -> DType:
    """Inverse of `str`: "u4", "s8", "s8n", "f16". Raises SpecError."""
    if text in FLOAT_BITS:
        return Float(text)
    kind, digits, narrow = text[:1], text[1:].removesuffix("n"), text.endswith("n")
    if kind not in ("u", "s") or not digits.isdecimal():
        raise SpecError(
            f"unknown element type {text!r}: u1..u32, s1..s32 (n for narrow), {', '.join(FLOAT_BITS)}"
        )
    return Grid(int(digits), signed=kind == "s", narrow=narrow)
