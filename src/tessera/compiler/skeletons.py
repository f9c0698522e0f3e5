"""QGraphs of linear layers in the common formats (the skeletons of QFactory section 3.1).

A skeleton is named by its weights' format, its activations and its group pattern:

    w4a16-g128, qoq-g128, w8a8           recipes, as everywhere
    zero3-g64, sym4a8-chn, nf4-g64, …    a format of FORMATS, "a8" for dynamic int8 activations, a pattern
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tessera.compiler.dims import Dim
from tessera.compiler.errors import UnknownSkeletonError
from tessera.compiler.frontend import Spec, Tensor, program, quantized, spec
from tessera.compiler.graph import QGraph
from tessera.compiler.mapping import Parameter, Value, mapping
from tessera.spec import (
    A8,
    A16,
    E4M3,
    E5M2,
    F16,
    F32,
    Chain,
    DType,
    Float,
    Grid,
    GroupSizeError,
    Param,
    Pattern,
    Recipe,
    Step,
    affine_min,
    affine_zero,
    param,
    progressive,
    symmetric,
)


def lookup(bits: int, pattern: Pattern) -> Chain:
    """A table of any 2^bits values, then a scale: NF4, and every codebook."""
    return Chain(
        Grid(bits),
        (
            Step("lookup", F16, (param("table", F16),), Pattern.tensor()),
            Step("scale", F16, (param("scale", F16),), pattern),
        ),
    )


def floating(codes: Float, pattern: Pattern, scale: DType = F16) -> Chain:
    """Small floats times a scale."""
    return Chain(codes, (Step("scale", F16, (param("scale", scale),), pattern),))


def nvfp4(pattern: Pattern) -> Chain:
    """fp4 with fp8 scales by groups and one fp32 scale (NVFP4)."""

    @mapping(Float("f4e2m1"), pattern, scale=E4M3, tensor_scale=(F32, Pattern.tensor()))
    def chain(q: Value, scale: Parameter, tensor_scale: Parameter) -> Value:
        return q * scale * tensor_scale

    return chain


def q4_k(pattern: Pattern) -> Chain:
    """4-bit codes with 6-bit scales and minima, scaled by super-blocks of 8 groups (GGML's Q4_K)."""

    def six_bit(name: str) -> Param:
        return Param(name, symmetric(Grid(6), Pattern.blocks(1, 8)))

    return Chain(Grid(4), (Step("affine_min", F16, (six_bit("scale"), six_bit("min")), pattern),))


def _integer(bits: int, pattern: Pattern) -> Chain:
    return symmetric(Grid(bits, signed=True), pattern)


_BY_BITS: Final[dict[str, Callable[[int, Pattern], Chain]]] = {
    "sym": _integer,
    "zero": affine_zero,
    "min": affine_min,
    "lut": lookup,
}
"""Formats of 1 to 8 bits: sym4 is q·s in int4, zero4 (q - z)·s, min4 q·s + m, lut4 a table of 16 and a scale.
"""

FORMATS: Final[dict[str, Callable[[Pattern], Chain]]] = {
    **{f"{name}{bits}": partial(f, bits) for name, f in _BY_BITS.items() for bits in range(1, 9)},
    "nf4": partial(lookup, 4),
    "fp8": partial(floating, E4M3),
    "fp8e5m2": partial(floating, E5M2),
    "fp6": partial(floating, Float("f6e3m2")),
    "fp6e2m3": partial(floating, Float("f6e2m3")),
    "fp4": partial(floating, Float("f4e2m1")),
    "mxfp4": partial(floating, Float("f4e2m1"), scale=Float("f8e8m0")),
    "nvfp4": nvfp4,
    "qoq": progressive,
    "q4_k": q4_k,
}
"""Weight formats by name, each from its group pattern on [n, k]."""

NAMES: Final = (
    "w4a16-g128", "w4a16-g64", "w4a16-chn", "qoq-g128", "qoq-g64", "qoq-chn", "w4a8-g32", "w8a8-chn",
    "sym1-g128", "sym2-g128", "sym3-g128", "sym4-g128", "sym4a8-g128", "sym4a8-chn", "sym8-chn", "sym8-t",
    "zero1-g128", "zero2-g128", "zero3-g64", "zero5-g128", "zero6-g128", "zero7-g128", "zero8-chn",
    "zero4-b2x64", "zero4a8-g128", "zero4-i", "min4-g32", "min4-chn", "min4a8-g128", "min8-t", "nf4-g64",
    "lut4-chn", "lut3-g128", "lut4a8-chn", "fp8-t", "fp8-chn", "fp8e5m2-chn", "fp6-chn", "fp6e2m3-chn",
    "fp4-g32", "mxfp4-g32", "nvfp4-g16", "q4_k-g32",
)  # fmt: skip
"""A sample of every format and pattern: what the tests search and verify."""


def chains(name: str) -> tuple[Chain, Chain]:
    """(weight, activation) formats of a skeleton. Raises UnknownSkeletonError, or RecipeError for recipes."""
    if re.match(r"w\d|qoq", name):
        recipe = Recipe.parse(name)
        return recipe.weight_chain(), recipe.activation_chain()
    match = re.fullmatch(
        r"(?P<format>.+?)(?P<a8>a8)?(?:-(?P<pattern>t|chn|i|g[1-9]\d*|b[1-9]\d*x[1-9]\d*))?", name
    )
    if not match or match["format"] not in FORMATS:
        raise UnknownSkeletonError(
            f"no skeleton {name!r}: a recipe (w4a16-g128, qoq-g128), or one of {_known()}, "
            "with a8 for int8 activations and -t, -chn, -g<size>, -b<rows>x<columns> or -i, such as nf4-g64",
            param="recipe",
        )
    return FORMATS[match["format"]](pattern_of(match["pattern"] or "g128")), A8 if match["a8"] else A16


def _known() -> str:
    """Names of formats, those of every width as one."""
    widths = [f"{name}1 to {name}8" for name in _BY_BITS]
    return ", ".join([*widths, *(f for f in FORMATS if f[:-1] not in _BY_BITS)])


def pattern_of(text: str) -> Pattern:
    """Group pattern on [n, k] from t, chn, g<size>, b<rows>x<columns> or i."""
    simple = {"t": Pattern.tensor(), "chn": Pattern.channel(), "i": Pattern.individual()}
    if text in simple:
        return simple[text]
    if text[0] == "g":
        return Pattern.blocks(1, int(text[1:]))
    rows, columns = text[1:].split("x")
    return Pattern.blocks(int(rows), int(columns))


def skeleton(
    name: str,
    n: int = 4096,
    k: int = 4096,
    m: int | None = None,
    *,
    bias: bool = False,
    residual: bool = False,
) -> QGraph:
    """y[m, n] = x[m, k] · w[n, k]ᵀ (+ bias[n]) (+ residual[m, n]) in the format of `name`; m may stay
    symbolic.

    Raises GroupSizeError where groups do not divide n or k.
    """
    weight, activation = chains(name)
    check_groups(name, weight, (n, k))
    tokens, outputs, inputs = Dim("m", m), Dim("n", n), Dim("k", k)

    def linear(x: Tensor, w: Tensor, **extra: Tensor) -> Tensor:
        y = (x if activation.is_plain else x.quantize(activation)) @ w.T
        for term in extra.values():
            y = y + term
        return y

    extra: dict[str, Spec] = {}
    if bias:
        extra["bias"] = spec(outputs, dtype=F16, constant=True)
    if residual:
        extra["residual"] = spec(tokens, outputs, dtype=F16)
    x = spec(tokens, inputs, dtype=F16)
    return program(linear, x=x, w=quantized(outputs, inputs, chain=weight), **extra)


def check_groups(name: str, chain: Chain, shape: Sequence[int]) -> None:
    """Raises GroupSizeError naming the axis that the blocks of a step do not divide."""
    for step in chain.steps:
        for axis, size, block in zip("nk", shape, step.pattern.block, strict=True):
            if step.op != "lookup" and block and size % block:
                raise GroupSizeError(
                    f"{name}: blocks of {block} do not divide {axis} = {size} ({size % block} left over)",
                    param="recipe",
                )


__all__ = ["FORMATS", "NAMES", "chains", "pattern_of", "skeleton"]
