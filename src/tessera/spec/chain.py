"""Mapping functions as chains of steps, from stored codes to values.

QServe's two-level weights are one chain and not a special case:

    u4 --affine_zero(group_scale: u8, group_zero: u4; b(1,128))--> s8 --scale(scale: f16; c)--> f16
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from tessera.spec.errors import SpecError
from tessera.spec.grid import DType, Float, Grid, parse_dtype
from tessera.spec.pattern import Pattern

_TENSOR: Final = Pattern.tensor()

STEP_PARAMS: Final = {
    "cast": 0,
    "scale": 1,
    "shift": 1,
    "affine_zero": 2,
    "affine_min": 2,
    "lookup": 1,
}
"""Steps and how many parameters each takes.

cast         q                  the same number in another type
scale        q * s
shift        q + z              z in value units
affine_zero  (q - z) * s        z in code units
affine_min   q * s + m          m in value units
lookup       table[q]           the table has 2^bits entries in its own right, not one per group
"""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a step. Its `chain` is a bare type, or a mapping of its own (q4_k's 6-bit scales)."""

    name: str
    chain: "Chain"

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "chain": self.chain.to_json()}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {"name": str(name), "chain": chain}:
                return cls(name, Chain.from_json(chain))
            case _:
                raise SpecError(f"not a parameter: {raw!r}")


@dataclass(frozen=True, slots=True)
class Step:
    """One function applied to every element, with parameters shared as `pattern` says; yields type `out`."""

    op: str
    out: DType
    params: tuple[Param, ...] = ()
    pattern: Pattern = _TENSOR

    def __post_init__(self) -> None:
        if self.op not in STEP_PARAMS:
            raise SpecError(f"unknown step {self.op!r}: one of {', '.join(STEP_PARAMS)}")
        if len(self.params) != STEP_PARAMS[self.op]:
            raise SpecError(f"{self.op} takes {STEP_PARAMS[self.op]} parameters, not {len(self.params)}")

    def to_json(self) -> dict[str, object]:
        return {
            "op": self.op,
            "out": str(self.out),
            "params": [p.to_json() for p in self.params],
            "pattern": self.pattern.to_json(),
        }

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {"op": str(op), "out": str(out), "params": list(params), "pattern": pattern}:
                return cls(
                    op, parse_dtype(out), tuple(map(Param.from_json, params)), Pattern.from_json(pattern)
                )
            case _:
                raise SpecError(f"not a step: {raw!r}")

    def __str__(self) -> str:
        params = ", ".join(f"{p.name}: {p.chain}" for p in self.params)
        inner = f"{params}; {self.pattern}" if params else ""
        return f"--{self.op}({inner})--> {self.out}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Codes of type `codes`, then `steps` in order. With no steps it describes plain data of that type."""

    codes: DType
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        names = [p.name for p in self.params()]
        if len(set(names)) != len(names):
            raise SpecError(f"parameter names repeat in a chain: {names}")
        inputs = [self.codes, *(s.out for s in self.steps)]
        for step, source in zip(self.steps, inputs, strict=False):
            if step.op == "lookup" and not isinstance(source, Grid):
                raise SpecError(f"lookup needs integer codes, got {source}")

    @property
    def out(self) -> DType:
        return self.steps[-1].out if self.steps else self.codes

    @property
    def is_plain(self) -> bool:
        return not self.steps

    def params(self) -> Iterator[Param]:
        for step in self.steps:
            yield from step.params

    def rank(self) -> int | None:
        """Rank the patterns are written for, or None where no step has parameters."""
        return next((s.pattern.rank for s in self.steps if s.params), None)

    def to_json(self) -> dict[str, object] | str:
        """A bare type is its name; a chain is {codes, steps}. This form stands in checkpoints."""
        if self.is_plain:
            return str(self.codes)
        return {"codes": str(self.codes), "steps": [s.to_json() for s in self.steps]}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case str():
                return cls(parse_dtype(raw))
            case {"codes": str(codes), "steps": list(steps)}:
                return cls(parse_dtype(codes), tuple(map(Step.from_json, steps)))
            case _:
                raise SpecError(f"not a chain: {raw!r}")

    def __str__(self) -> str:
        return " ".join([str(self.codes), *map(str, self.steps)])


def plain(dtype: DType) -> Chain:
    """Data of a bare type, as a chain."""
    return Chain(dtype)


def param(name: str, dtype: DType) -> Param:
    """A parameter of a bare type."""
    return Param(name, Chain(dtype))


__all__ = ["STEP_PARAMS", "Chain", "Float", "Grid", "Param", "Step", "param", "plain"]
