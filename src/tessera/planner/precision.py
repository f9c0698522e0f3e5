"""Number formats of a plan: a recipe of `spec`, or one of the baselines that recipes are compared with."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Literal

from tessera.planner.model_shape import Role
from tessera.spec import (
    BF16,
    F16,
    F32,
    S8N,
    Chain,
    Pattern,
    Recipe,
    RecipeError,
    affine_min,
    plain,
    symmetric,
)

KvParams = Literal["counted", "none"]


@dataclass(frozen=True, slots=True)
class Precision:
    """How each role of matrix is stored, what the KV cache holds, and which peak the products run at.

    compute       type of the products of linear layers
    head_compute  type of the output layer's
    kv            chain of K or V as [tokens, kv heads, head_dim]
    weight_bits, activation_bits, kv_bits   of codes alone, as a recipe names them
    """

    name: str
    weight_bits: int
    activation_bits: int
    kv_bits: int
    linear: Chain
    head: Chain
    kv: Chain
    compute: str
    head_compute: str
    recipe: Recipe | None = None

    def chain(self, role: Role) -> Chain:
        """Storage of matrices of that role; norms, biases and routers stay 16-bit."""
        if role in ("linear", "expert"):
            return self.linear
        return self.head if role in ("embedding", "head") else plain(BF16)

    @property
    def attention_compute(self) -> str:
        """Type of the products of attention: floats, whatever the linear layers use."""
        return self.compute if self.compute in ("bf16", "fp16", "fp32") else "bf16"

    @property
    def needs_dequantization(self) -> bool:
        """Whether weights have fewer bits than the matrix units take."""
        return self.weight_bits < self.activation_bits


_BF16: Final = Precision("bf16", 16, 16, 16, plain(BF16), plain(BF16), plain(F16), "bf16", "bf16")
_ROWS_8BIT: Final = symmetric(S8N, Pattern.channel(), F16)

BASELINES: Final = {
    "bf16": _BF16,
    "fp32": Precision("fp32", 32, 32, 32, plain(F32), plain(F32), plain(F32), "fp32", "fp32"),
    "fp16": replace(_BF16, name="fp16", compute="fp16", head_compute="fp16"),
    # e4m3 takes the bits of int8: one scale a row of weights, none in the cache. The head stays 16-bit, as
    # engines that serve fp8 keep it.
    "fp8": Precision("fp8", 8, 8, 8, _ROWS_8BIT, plain(BF16), plain(S8N), "fp8", "bf16"),
    "w8a8kv8": Precision(
        "w8a8kv8", 8, 8, 8, _ROWS_8BIT, _ROWS_8BIT, affine_min(8, Pattern((1, 1, 0))), "int8", "int8"
    ),
}
"""Formats that no recipe quantizes to, for comparison: name and precision."""


def precision_of(what: str | Recipe | Precision) -> Precision:
    """The precision that a recipe text, a `Recipe` or a baseline's name stands for.

    With int8 activations the embedding and the output layer are stored in 8 bits a row, as our quantizer
    does. Raises RecipeError with the grammar and the nearest baselines.
    """
    if isinstance(what, Precision):
        return what
    if isinstance(what, str):
        text = what.strip().lower()
        if text in BASELINES:
            return BASELINES[text]
        try:
            what = Recipe.parse(text)
        except RecipeError as error:
            near = get_close_matches(text, BASELINES, n=1) or list(BASELINES)
            raise RecipeError(f"{error}; baselines: {', '.join(near)}", param="recipe") from error
    integer = what.activation_bits == 8
    return Precision(
        name=str(what),
        weight_bits=what.weight_bits,
        activation_bits=what.activation_bits,
        kv_bits=what.kv_bits,
        linear=what.weight_chain(),
        head=_ROWS_8BIT if integer else plain(BF16),
        kv=what.kv_chain(),
        compute="int8" if integer else "bf16",
        head_compute="int8" if integer else "bf16",
        recipe=what,
    )


def with_weights(precision: Precision, chain: Chain, name: str = "") -> Precision:
    """The same with linear layers stored by another chain: how the planner prices a format of one's own."""
    bits = chain.codes.bits
    return replace(precision, name=name or str(chain), weight_bits=bits, linear=chain, recipe=None)
