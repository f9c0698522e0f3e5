"""What a linear layer computes: activation format, weight format, transforms, output type."""

from dataclasses import dataclass
from typing import Literal, Self

from tessera.spec.chain import Chain, Param, Step, param
from tessera.spec.errors import SpecError
from tessera.spec.grid import F16, F32, S8, S8N, U4, U8, DType, Float, Grid, parse_dtype
from tessera.spec.pattern import WHOLE, Pattern
from tessera.spec.qtile import Qtile

TransformKind = Literal["scale", "permutation", "hadamard"]


@dataclass(frozen=True, slots=True)
class Transform:
    """A change of the input basis that runs before the layer (folded ones leave no trace here)."""

    kind: TransformKind
    block: int = 0

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "block": self.block}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {"kind": "scale" | "permutation" | "hadamard" as kind, "block": int(block)}:
                return cls(kind, block)
            case _:
                raise SpecError(f"not a transform: {raw!r}")


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """y[T, N] = x[T, K] W[N, K]^T + bias, with x stored by `activation` and W by `weight`."""

    out_features: int
    in_features: int
    weight: Chain
    activation: Chain
    output: Float = F32
    bias: bool = False
    transforms: tuple[Transform, ...] = ()

    @property
    def weight_tile(self) -> Qtile:
        return Qtile((self.out_features, self.in_features), self.weight)

    def to_json(self) -> dict[str, object]:
        return {
            "out_features": self.out_features,
            "in_features": self.in_features,
            "weight": self.weight.to_json(),
            "activation": self.activation.to_json(),
            "output": str(self.output),
            "bias": self.bias,
            "transforms": [t.to_json() for t in self.transforms],
        }

    @classmethod
    def from_json(cls, raw: object) -> Self:
        match raw:
            case {
                "out_features": int(n),
                "in_features": int(k),
                "weight": weight,
                "activation": activation,
                "output": str(output),
                "bias": bool(bias),
                "transforms": list(transforms),
            }:
                out = parse_dtype(output)
                if not isinstance(out, Float):
                    raise SpecError(f"a linear layer puts out floats, not {output}")
                return cls(
                    n,
                    k,
                    Chain.from_json(weight),
                    Chain.from_json(activation),
                    out,
                    bias,
                    tuple(map(Transform.from_json, transforms)),
                )
            case _:
                raise SpecError(f"not a linear layer: {raw!r}")


def symmetric(codes: Grid, pattern: Pattern, scale: DType = F16) -> Chain:
    """codes --scale--> float, e.g. int8 weights per channel or int8 activations per token."""
    return Chain(codes, (Step("scale", F32, (param("scale", scale),), pattern),))


def affine_zero(bits: int, pattern: Pattern) -> Chain:
    """(q - zero) * scale with an integer zero point and an fp16 scale: W4A16."""
    zero = Grid(bits)
    return Chain(Grid(bits), (Step("affine_zero", F16, (param("scale", F16), param("zero", zero)), pattern),))


def affine_min(bits: int, pattern: Pattern) -> Chain:
    """q * scale + min, both fp16: the KV cache."""
    params: tuple[Param, ...] = (param("scale", F16), param("min", F16))
    return Chain(Grid(bits), (Step("affine_min", F32, params, pattern),))


def progressive(pattern: Pattern) -> Chain:
    """QoQ's two levels (QServe, seed 000): u4 by groups into int8, int8 per channel into floats."""
    group = Step("affine_zero", S8, (param("group_scale", U8), param("group_zero", U4)), pattern)
    return Chain(U4, (group, Step("scale", F16, (param("scale", F16),), Pattern.channel())))


def group_of(chain: Chain) -> int | None:
    """Group size along the input axis of a weight chain, or None where parameters span whole rows."""
    sizes = [s.pattern.block[-1] for s in chain.steps if s.params and s.op != "lookup"]
    return next((size for size in sizes if size != WHOLE), None)


A8 = symmetric(S8N, Pattern.channel(), F32)
"""int8 activations, symmetric, one fp32 scale per token."""
A16 = Chain(F16)
A32 = Chain(F32)
