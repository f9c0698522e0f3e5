"""Mapping functions written as Python: a function of codes and parameters becomes a `spec.Chain`.

    @mapping(Grid(3), Pattern.blocks(1, 64), scale=F16, offset=F16)
    def w3(q, scale, offset):
        return q * scale + offset

`w3` is then a chain like any other: checkpoints can store it, the planner can price it, and the compiler
knows which parts of it can be deferred.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from tessera.compiler.errors import MappingError
from tessera.spec import F16, F32, Chain, DType, Float, Param, Pattern, SpecError, Step

ParamSpec = DType | Chain | tuple[DType | Chain, Pattern]
"""Storage of a parameter, with its own group pattern where that differs from the mapping's."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter while a mapping function is traced; a table can be indexed by codes."""

    param: Param
    pattern: Pattern

    def __getitem__(self, codes: "Value") -> "Value":
        if not isinstance(codes, Value):
            raise MappingError(f"{self.param.name}[{codes!r}]: a table is indexed by codes")
        return codes.then("lookup", self)


@dataclass(frozen=True, slots=True)
class Value:
    """Codes on their way to values: the steps so far, and a zero point subtracted but not yet scaled."""

    steps: tuple[Step, ...] = ()
    zero: Parameter | None = None

    def __mul__(self, other: Parameter) -> Self:
        _require_parameter("scale", other)
        if self.zero is None:
            return self.then("scale", other)
        if self.zero.pattern != other.pattern:
            raise MappingError(f"(q - {self.zero.param.name}) · {other.param.name}: both need one pattern")
        return type(self)(self.steps).then("affine_zero", other, self.zero)

    def __add__(self, other: Parameter) -> Self:
        _require_parameter("shift", other)
        last = self.steps[-1] if self.steps else None
        if last is None or last.op != "scale" or last.pattern != other.pattern or self.zero is not None:
            return self.then("shift", other)
        scale = Parameter(last.params[0], last.pattern)
        return type(self)(self.steps[:-1]).then("affine_min", scale, other)

    def __sub__(self, other: Parameter) -> Self:
        _require_parameter("zero point", other)
        if self.zero is not None:
            raise MappingError("two zero points are subtracted one after the other: store their sum")
        return type(self)(self.steps, other)

    __rmul__, __radd__ = __mul__, __add__

    def then(self, op: str, *params: Parameter) -> Self:
        if self.zero is not None:
            raise MappingError(f"q - {self.zero.param.name} is not scaled: store -z and write q + z")
        out: DType = F32 if op != "lookup" else params[0].param.chain.out
        step = Step(op, out, tuple(p.param for p in params), params[0].pattern)
        return type(self)((*self.steps, step))


def _require_parameter(what: str, value: object) -> None:
    if not isinstance(value, Parameter):
        raise MappingError(f"{what} {value!r}: codes meet parameters only; make the constant a parameter")


def mapping(
    codes: DType, pattern: Pattern, out: Float = F16, **params: ParamSpec
) -> Callable[[Callable[..., Value]], Chain]:
    """Decorator: the chain of a function f(q, *parameters) built of +, -, * and table[q].

    `pattern` is the group pattern of every parameter that brings none of its own. Raises MappingError for a
    function that does anything else, or leaves a parameter out.
    """

    def trace(function: Callable[..., Value]) -> Chain:
        given = {name: _parameter(name, spec, pattern) for name, spec in params.items()}
        try:
            value = function(Value(), **given)
        except TypeError as error:
            raise MappingError(f"{function.__name__}: {error}") from error
        if not isinstance(value, Value) or value.zero is not None or not value.steps:
            raise MappingError(
                f"{function.__name__} returns no scaled codes; a last 'q - z' has to be 'q + z'"
            )
        try:
            chain = Chain(codes, (*value.steps[:-1], replace(value.steps[-1], out=out)))
        except SpecError as error:
            raise MappingError(f"{function.__name__}: {error}") from error
        if unused := given.keys() - {p.name for p in chain.params()}:
            raise MappingError(f"{function.__name__} does not use {', '.join(sorted(unused))}")
        return chain

    return trace


def _parameter(name: str, spec: ParamSpec, pattern: Pattern) -> Parameter:
    storage, own = spec if isinstance(spec, tuple) else (spec, pattern)
    return Parameter(Param(name, storage if isinstance(storage, Chain) else Chain(storage)), own)


__all__ = ["Parameter", "Value", "mapping"]
