"""Recipe grammar: the one parser behind `tessera quantize`, `plan`, `compile` and checkpoints.

w<bits>[a<bits>][kv<bits>][-g<size>|-chn][-algorithm]          g128 where no group is given
qoq-g128                                                       short for w4a8kv4-g128-qoq
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from tessera.spec.chain import Chain
from tessera.spec.errors import GroupSizeError, RecipeError
from tessera.spec.grid import F16, S8N, U4, Grid
from tessera.spec.linear import A8, A16, affine_min, affine_zero, progressive, symmetric
from tessera.spec.pattern import WHOLE, Pattern

ALGORITHMS: Final = {
    "rtn": "round to nearest",
    "gptq": "GPTQ rounding on the default calibration text",
    "qoq": "balance input channels, SmoothAttention on K, GPTQ rounding (after QServe)",
}
GROUPS: Final = (32, 64, 128)
PER_CHANNEL: Final = WHOLE
KV_BITS: Final = (4, 16)

_RECIPE = re.compile(
    r"w(?P<w>\d+)(?:a(?P<a>\d+))?(?:kv(?P<kv>\d+))?(?:-(?:g(?P<g>[1-9]\d*)|(?P<chn>chn)))?(?:-(?P<algo>[a-z]+))?"
)
_QOQ = re.compile(r"qoq(?P<group>-g\d+|-chn)?")


def kv_chain(bits: int) -> Chain:
    """Of K or V as [tokens, kv_heads, head_dim]; `bits` is one of KV_BITS. Where it is 4 every token and head
    has a scale and a minimum.
    """
    return affine_min(bits, Pattern((1, 1, WHOLE))) if bits == 4 else A16


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bits of weights, activations and KV cache (16 = left alone), group size, algorithm."""

    weight_bits: int
    activation_bits: int = 16
    kv_bits: int = 16
    group: int = 128
    algorithm: str = "gptq"
    ragged_tail: bool = False

    @classmethod
    def parse(cls, text: str, ragged_tail: bool = False) -> Self:
        """Raises RecipeError naming the part that is wrong and the grammar."""
        if short := _QOQ.fullmatch(text):
            return cls.parse(f"w4a8kv4{short['group'] or ''}-qoq", ragged_tail)
        match = _RECIPE.fullmatch(text)
        if not match:
            raise RecipeError(
                f"recipe {text!r} is not w<bits>[a<bits>][kv<bits>][-g32|-g64|-g128|-chn][-algorithm], "
                "for example qoq-g128, w4a16-g64 or w8a8-chn"
            )
        bits = int(match["w"])
        recipe = cls(
            weight_bits=bits,
            activation_bits=int(match["a"] or 16),
            kv_bits=int(match["kv"] or 16),
            group=PER_CHANNEL if match["chn"] or (bits == 8 and not match["g"]) else int(match["g"] or 128),
            algorithm=match["algo"] or ("gptq" if bits < 8 else "rtn"),
            ragged_tail=ragged_tail,
        )
        recipe._check(text)
        return recipe

    def _check(self, text: str) -> None:
        legal: tuple[tuple[str, object, tuple[object, ...]], ...] = (
            ("weight bits", self.weight_bits, (4, 8)),
            ("activation bits", self.activation_bits, (8, 16)),
            ("KV bits", self.kv_bits, KV_BITS),
            ("group", self.group, (*GROUPS, PER_CHANNEL)),
            ("algorithm", self.algorithm, tuple(ALGORITHMS)),
        )
        for name, value, allowed in legal:
            if value not in allowed:
                options = ", ".join(
                    "chn" if o == PER_CHANNEL and name == "group" else str(o) for o in allowed
                )
                raise RecipeError(f"recipe {text!r}: {name} {value} is not one of {options}")
        if self.weight_bits == 8 and self.group != PER_CHANNEL:
            raise RecipeError(f"recipe {text!r}: 8-bit weights are per channel; write w8…-chn")
        if self.algorithm == "qoq" and (self.weight_bits, self.activation_bits) != (4, 8):
            raise RecipeError(f"recipe {text!r}: qoq is a W4A8 algorithm")
        if self.ragged_tail and self.group == PER_CHANNEL:
            raise RecipeError(f"recipe {text!r}: a ragged tail needs groups")

    def weight_chain(self) -> Chain:
        """W8: symmetric per channel. W4A16: affine_zero. W4A8: QoQ's two levels, or one with -chn."""
        if self.weight_bits == 8:
            return symmetric(S8N, Pattern.channel(), F16)
        if self.group == PER_CHANNEL:
            return affine_zero(self.weight_bits, Pattern.channel())
        pattern = Pattern.blocks(1, self.group, ragged=self.ragged_tail)
        return progressive(pattern) if self.activation_bits == 8 else affine_zero(self.weight_bits, pattern)

    def table_chain(self) -> Chain:
        """Of embedding and head: 8 bits a row where activations have them, tied or not, else 16."""
        return symmetric(S8N, Pattern.channel(), F16) if self.activation_bits == 8 else A16

    def activation_chain(self) -> Chain:
        return A8 if self.activation_bits == 8 else A16

    def kv_chain(self) -> Chain:
        return kv_chain(self.kv_bits)

    def check_layers(self, layers: dict[str, int]) -> None:
        """`layers` maps names to input sizes. Raises GroupSizeError before any weight is read."""
        if self.group == PER_CHANNEL or self.ragged_tail:
            return
        bad = {name: k for name, k in layers.items() if k % self.group}
        if not bad:
            return
        name, k = next(iter(bad.items()))
        legal = [g for g in GROUPS if all(size % g == 0 for size in layers.values())]
        raise GroupSizeError(
            f"{name} has K = {k}, which groups of {self.group} do not divide ({k} = {k // self.group} x "
            f"{self.group} + {k % self.group}); {len(bad)} of {len(layers)} layers have this. "
            f"Groups that fit every layer: {', '.join(f'g{g}' for g in legal) or 'none'}, or chn; "
            "tessera quantize --ragged-tail stores a shorter last group",
            param="recipe",
        )

    def __str__(self) -> str:
        a = f"a{self.activation_bits}"
        kv = f"kv{self.kv_bits}" if self.kv_bits != 16 else ""
        group = "chn" if self.group == PER_CHANNEL else f"g{self.group}"
        if (self.weight_bits, self.activation_bits, self.kv_bits, self.algorithm) == (4, 8, 4, "qoq"):
            return f"qoq-{group}"
        return f"w{self.weight_bits}{a}{kv}-{group}-{self.algorithm}"


__all__ = ["ALGORITHMS", "GROUPS", "KV_BITS", "PER_CHANNEL", "U4", "Grid", "Recipe", "kv_chain"]
