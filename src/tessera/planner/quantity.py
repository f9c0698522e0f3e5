"""A number with the formula that made it: what the API returns, `--explain` prints and `--json` holds.

The formula is text, and that text is what is computed: explanation and value cannot drift apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, floor, inf, isfinite
from types import CodeType
from typing import Any, Final, Self

from tessera.planner.errors import PlanError

_FUNCTIONS: Final = {"__builtins__": {}, "min": min, "max": max, "floor": floor, "ceil": ceil}

_SCALES: Final = {
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "op/s": ((1e15, "Pop/s"), (1e12, "Top/s"), (1e9, "Gop/s"), (1.0, "op/s")),
    "op": ((1e15, "Pop"), (1e12, "Top"), (1e9, "Gop"), (1.0, "op")),
    "instr/s": ((1e12, "Tinstr/s"), (1e9, "Ginstr/s"), (1.0, "instr/s")),
    "instr": ((1e12, "Tinstr"), (1e9, "Ginstr"), (1.0, "instr")),
    "parameters": ((1e9, "G parameters"), (1e6, "M parameters"), (1.0, "parameters")),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """`value` in SI `unit`: `formula` evaluated with `inputs`.

    note   the convention used, or what a reader should know
    also   the same quantity by other conventions: {label: value}, shown beside it
    """

    name: str
    value: float
    unit: str
    formula: str
    inputs: Mapping[str, float]
    note: str = ""
    also: Mapping[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return float(self.value)

    def beside(self, **others: "Quantity | float") -> Self:
        """The same with values of other conventions shown beside it; underscores in labels are spaces."""
        also = {label.replace("_", " "): float(value) for label, value in others.items()}
        return replace(self, also={**self.also, **also})

    def at(self, **changes: float) -> float:
        """The formula's value with some inputs changed: tpot.at(batch=64)."""
        return _evaluate(self.formula, {**self.inputs, **changes})

    def function(self, *names: str) -> Callable[..., float]:
        """The formula as a fast function of the inputs named, in that order; the others are fixed."""
        code = compile(f"lambda {', '.join(names)}: {self.formula}", "<formula>", "eval")
        made: Callable[..., float] = eval(code, {**_FUNCTIONS, **self.inputs})
        return made

    def noted(self, note: str) -> Self:
        """The same with a note."""
        return replace(self, note=note)

    @property
    def text(self) -> str:
        """Value and unit in a readable scale: "22.7 ms"."""
        return show(self.value, self.unit)

    def explain(self) -> str:
        """One line: name = formula = formula with its numbers = value, then conventions beside it."""
        numbers = _substituted(self.formula, self.inputs)
        steps = [self.name, self.formula, *([numbers] if numbers != self.formula else []), self.text]
        beside = "".join(f"; {label}: {show(value, self.unit)}" for label, value in self.also.items())
        note = f"  ({self.note})" if self.note else ""
        return " = ".join(steps) + beside + note

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: infinities become null."""
        return {
            "value": finite(self.value),
            "unit": self.unit,
            "text": self.text,
            "formula": self.formula,
            "inputs": {name: finite(value) for name, value in self.inputs.items()},
            "note": self.note,
            "also": {label: finite(value) for label, value in self.also.items()},
        }


def quantity(name: str, unit: str, formula: str, /, **inputs: "Quantity | float") -> Quantity:
    """`formula`, a Python expression over `inputs` with min, max, floor and ceil, evaluated.

    A division by zero is infinite: an unbounded ceiling is an answer.
    """
    numbers = {key: float(value) for key, value in inputs.items()}
    return Quantity(name, _evaluate(formula, numbers), unit, formula, numbers)


def _evaluate(formula: str, inputs: Mapping[str, float]) -> float:
    try:
        return float(eval(_compiled(formula), _FUNCTIONS, dict(inputs)))
    except ZeroDivisionError:
        return inf


@lru_cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


def _substituted(formula: str, inputs: Mapping[str, float]) -> str:
    """The formula with numbers in place of names."""
    out, word = [], ""
    for char in [*formula, " "]:
        if char.isalnum() or char == "_":
            word += char
            continue
        out.append(_plain(inputs[word]) if word in inputs else word)
        out.append(char)
        word = ""
    return "".join(out).rstrip()


def _plain(value: float) -> str:
    if not isfinite(value):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < 1e7 else f"{value:.4g}"


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if isfinite(value) else None


def show(value: float, unit: str) -> str:
    """A value in its readable scale with three significant digits: show(0.0227, "s") is "22.7 ms"."""
    if not isfinite(value):
        return f"unbounded ({unit})"
    for scale, label in _SCALES.get(unit, ()):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {label}"
    if unit == "bit/weight":
        return f"{value:.5g} {unit}"
    if unit == "":
        return _three(value)
    return f"{_three(value)} {unit}"


def _three(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.2e}"


def positive(**values: float) -> None:
    """Raises PlanError naming the first value that is not a positive number."""
    for name, value in values.items():
        if not (isfinite(value) and value > 0):
            raise PlanError(f"{name} is {value}: it must be above 0", param=name)


def fraction(**values: float) -> None:
    """Raises PlanError naming the first value outside 0..1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise PlanError(f"{name} is {value}: it must lie between 0 and 1", param=name)
