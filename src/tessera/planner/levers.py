"""W4, A8 and KV4 as three switches that can be priced apart, and the recipes that their combinations are."""

from dataclasses import replace
from typing import Final, Literal

from tessera.planner.model_shape import ModelShape
from tessera.planner.parallel import split_inputs
from tessera.planner.precision import Precision, precision_of
from tessera.planner.quantity import positive
from tessera.spec import GROUPS

Lever = Literal["W4", "A8", "KV4"]

LEVERS: Final[tuple[Lever, ...]] = ("W4", "A8", "KV4")

_RECIPES: Final[dict[frozenset[Lever], str]] = {
    frozenset(): "bf16",
    frozenset({"W4"}): "w4a16-{group}",
    frozenset({"A8"}): "w8a8-chn",
    frozenset({"KV4"}): "w8a16kv4-chn",
    frozenset({"W4", "A8"}): "w4a8-{group}",
    frozenset({"W4", "KV4"}): "w4a16kv4-{group}",
    frozenset({"A8", "KV4"}): "w8a8kv4-chn",
    frozenset({"W4", "A8", "KV4"}): "qoq-{group}",
}


def group_of(model: ModelShape, tp: int = 1) -> str:
    """The largest group that divides the inputs of every linear layer on each of `tp` devices, or chn.

    Raises PlanError for a `tp` that is not positive.
    """
    positive(tp=tp)
    inputs = {*model.linear_inputs().values(), *split_inputs(model, tp).values()}
    legal = [group for group in GROUPS if all(size % group == 0 for size in inputs)]
    return f"g{max(legal)}" if legal else "chn"


def recipe_of(levers: frozenset[Lever], model: ModelShape, tp: int = 1) -> str:
    """What to quantize to for these levers: where W4 is not among them but another is, weights get 8 bits, as
    no recipe leaves them 16."""
    return _RECIPES[levers].format(group=group_of(model, tp))


def with_levers(levers: frozenset[Lever], model: ModelShape, tp: int = 1) -> Precision:
    """A precision with just these switched on, all else 16-bit.

    A8 alone is int8 products at 16-bit weights: no real format, but what A8 buys apart from the 8-bit weights
    that come with it.
    """
    base, group = precision_of("bf16"), group_of(model, tp)
    full, weights = precision_of(f"qoq-{group}"), precision_of(f"w4a16-{group}")
    found = replace(base, name="+".join(lever for lever in LEVERS if lever in levers) or "bf16")
    if "W4" in levers:
        found = replace(found, weight_bits=4, linear=weights.linear)
    if "A8" in levers:
        found = replace(found, activation_bits=8, compute="int8", head_compute="int8")
    if {"W4", "A8"} <= levers:  # two levels of scales, and the tables of tokens in 8 bits
        found = replace(found, linear=full.linear, head=full.head)
    if "KV4" in levers:
        found = replace(found, kv_bits=4, kv=full.kv)
    return found
