"""Tensor parallelism: what each device holds, and what its all-reduces cost."""

from typing import Final

from tessera.hardware import Device
from tessera.planner.errors import PlanError
from tessera.planner.model_shape import ModelShape
from tessera.planner.quantity import Quantity, quantity
from tessera.planner.roofline import Number
from tessera.spec import Recipe


def check_split(model: ModelShape, tp: int) -> None:
    """Raises PlanError naming the degrees of tensor parallelism that the model's heads allow."""
    legal = [n for n in (1, 2, 4, 8, 16, 32) if _splits(model, n)]
    if tp not in legal and not (tp > 0 and _splits(model, tp)):
        raise PlanError(
            f"{model.name} has {model.heads} query and {model.kv_heads} KV heads, which {tp} devices do not "
            f"share evenly: take {', '.join(map(str, legal))}",
            param="tp",
        )


def check_groups(model: ModelShape, recipe: Recipe | None, tp: int) -> None:
    """Raises GroupSizeError where splitting o and down by input among `tp` devices cuts a group."""
    if recipe is not None and tp > 1:
        recipe.check_layers(split_inputs(model, tp))


def split_inputs(model: ModelShape, tp: int) -> dict[str, int]:
    """Input sizes on each device of the layers that are split by input."""
    return {f"o / {tp}": model.q_size // tp, f"down / {tp}": model.intermediate // tp}


def _splits(model: ModelShape, tp: int) -> bool:
    whole_heads = model.kv_heads % tp == 0 or tp % model.kv_heads == 0
    return model.heads % tp == 0 and whole_heads and model.intermediate % tp == 0


def kv_share(model: ModelShape, tp: int) -> float:
    """Share of the KV cache of each device; heads are replicated where there are fewer than devices."""
    return max(1, model.kv_heads // tp) / model.kv_heads


ALL_REDUCE: Final = "2 * layers * (2 * latency + 2 * (tp - 1) / tp * tokens * hidden * 2 / link)"
"""Two all-reduces a layer of 16-bit hidden states, each as a reduce-scatter and an all-gather."""


def all_reduce_time(device: Device, tp: int, tokens: Number, hidden: int, layers: int) -> Quantity:
    """Seconds of a step's all-reduces. Raises PlanError where the device's link is not known."""
    if tp == 1:
        return quantity("all_reduce_time", "s", "0")
    check_link(device)
    inputs = {
        "layers": layers,
        "latency": device.link_latency,
        "tp": tp,
        "hidden": hidden,
        "link": device.link,
    }
    return quantity("all_reduce_time", "s", ALL_REDUCE, tokens=tokens, **inputs)


def check_link(device: Device) -> None:
    """Raises PlanError where the device has no known link."""
    if not device.link:
        raise PlanError(
            f"{device.name} has no known link to other devices: give custom:from={device.name},link=… (GB/s)",
            param="tp",
        )
