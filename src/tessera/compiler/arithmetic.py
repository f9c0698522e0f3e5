"""Three arithmetics that a graph can be evaluated in.

`REAL`       float64: what the program computes, to about 16 digits.
`FIELD`      integers modulo a prime P: exact, division included. Rules are identities of rational functions.
             Two different ones of degree d agree at a random point with probability at most d / P
             (Schwartz-Zippel), so agreement on random inputs is a proof but for one chance in millions.
`MAGNITUDE`  float64 with every sign made positive: what rounding errors are relative to.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol

import torch
from torch import Tensor

from tessera.compiler.errors import CompilerError
from tessera.numerics import quantize_rows
from tessera.spec import S8N, Grid

PRIME: Final = 33_554_393
"""2^25 - 39: a product has 50 bits, so int64 sums 8192 of them."""

FUNCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
}
"""Elementwise functions that the interpreter computes."""


class Arithmetic(Protocol):
    """What evaluation needs; every tensor is of the type that `load` makes."""

    def load(self, values: Tensor) -> Tensor: ...
    def add(self, left: Tensor, right: Tensor) -> Tensor: ...
    def mul(self, left: Tensor, right: Tensor) -> Tensor: ...
    def neg(self, x: Tensor) -> Tensor: ...
    def matmul(self, left: Tensor, right: Tensor) -> Tensor: ...
    def total(self, x: Tensor, axis: int, keep: bool) -> Tensor: ...
    def index(self, x: Tensor) -> Tensor: ...
    def function(self, name: str, x: Tensor) -> Tensor: ...
    def round(self, x: Tensor, grid: Grid) -> Tensor: ...
    def quantize(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]: ...


class Real:
    """float64."""

    def load(self, values: Tensor) -> Tensor:
        return values.double()

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right

    def neg(self, x: Tensor) -> Tensor:
        return -x

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right

    def total(self, x: Tensor, axis: int, keep: bool) -> Tensor:
        return x.sum(axis, keepdim=keep)

    def index(self, x: Tensor) -> Tensor:
        return x.long()

    def function(self, name: str, x: Tensor) -> Tensor:
        if name not in FUNCTIONS:
            raise CompilerError(f"function {name!r} is not one that is computed here: {', '.join(FUNCTIONS)}")
        return FUNCTIONS[name](x)

    def round(self, x: Tensor, grid: Grid) -> Tensor:
        """To the nearest of the grid, ties to even; what is outside goes to its ends."""
        return x.round().clamp(grid.low, grid.high)

    def quantize(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Codes and scales per row of the last axis; int8 as `numerics.quantize_rows` does, in float32."""
        if grid == S8N:
            rows = quantize_rows(x.flatten(0, -2))
            return rows.codes.double().view_as(x), rows.scale.double().view(*x.shape[:-1], 1)
        scale = (x.abs().amax(-1, keepdim=True) / grid.high).clamp_min(
            torch.finfo(torch.float32).smallest_normal
        )
        return (x / scale).round().clamp(grid.low, grid.high), scale


class Magnitude(Real):
    """float64 without signs."""

    def load(self, values: Tensor) -> Tensor:
        return values.double().abs()

    def neg(self, x: Tensor) -> Tensor:
        return x


class Field:
    """int64 modulo PRIME. Functions and rounding are unknown ones: equal arguments give equal, otherwise
    arbitrary, results.
    """

    def load(self, values: Tensor) -> Tensor:
        return values.long() % PRIME

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return (left + right) % PRIME

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right) % PRIME

    def neg(self, x: Tensor) -> Tensor:
        return -x % PRIME

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        k = left.shape[-1]
        starts = range(0, k, 4096)
        parts = [left[..., i : i + 4096] @ right[..., i : i + 4096, :] % PRIME for i in starts]
        return torch.stack(parts).sum(0) % PRIME

    def total(self, x: Tensor, axis: int, keep: bool) -> Tensor:
        return x.sum(axis, keepdim=keep) % PRIME

    def index(self, x: Tensor) -> Tensor:
        return torch.where(x > PRIME // 2, x - PRIME, x)

    def function(self, name: str, x: Tensor) -> Tensor:
        if name != "reciprocal":
            return self._unknown(name, x)
        power, result = x, torch.ones_like(x)
        for bit in range(PRIME.bit_length()):
            if (PRIME - 2) >> bit & 1:
                result = self.mul(result, power)
            power = self.mul(power, power)
        return result

    def round(self, x: Tensor, grid: Grid) -> Tensor:
        return self._unknown(f"round to {grid}", x)

    def quantize(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        weights = self._unknown("row", torch.arange(x.shape[-1]))
        scale = self._unknown(f"scale {grid}", self.total(self.mul(x, weights), -1, True))
        return self._unknown(f"codes {grid}", self.add(self.mul(x, x), self.mul(x, scale))), scale

    def _unknown(self, name: str, x: Tensor) -> Tensor:
        seed = int.from_bytes(blake2b(name.encode(), digest_size=3).digest(), "big") + 1
        mixed = self.mul(x ^ (x >> 11), torch.tensor(seed))
        return self.mul(mixed ^ (mixed >> 7), x + seed)


REAL: Final[Arithmetic] = Real()
FIELD: Final[Arithmetic] = Field()
MAGNITUDE: Final[Arithmetic] = Magnitude()
