"""Recipes and devices side by side, cheapest or fastest first; what does not fit is listed with a reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tessera.hardware import Device, MissingPeakError, find_device
from tessera.planner.errors import CapacityError, PlanError
from tessera.planner.model_shape import ModelShape
from tessera.planner.planning import Plan, plan
from tessera.planner.precision import Precision
from tessera.planner.quantity import Quantity
from tessera.planner.read_model import Source, shape_of
from tessera.spec import GroupSizeError, Recipe

Sort = Literal["cost", "latency", "throughput"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One device and recipe on `tp` devices: its plan, or why there is none."""

    gpu: str
    recipe: str
    tp: int
    plan: Plan | None
    reason: str = ""

    def key(self, sort: Sort) -> float:
        """What candidates are sorted by, smallest first; candidates without a plan come last."""
        if self.plan is None:
            return float("inf")
        value = float(compared_by(self.plan, sort))
        return -value if sort == "throughput" else value

    def explain(self) -> str:
        """One line: the price and its formula, or why there is none."""
        answer = self.reason if self.plan is None else compared_by(self.plan, "cost").explain()
        return f"{self.gpu} x {self.tp}, {self.recipe}: {answer}"

    def to_json(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "recipe": self.recipe,
            "tp": self.tp,
            "plan": None if self.plan is None else self.plan.to_json(),
            "reason": self.reason,
        }


def compared_by(made: Plan, sort: Sort) -> Quantity:
    """The quantity of a plan that `sort` stands for: of decoding alone where there is no workload."""
    if sort == "latency":
        return made["tpot_predicted"]
    return made[f"{sort}_with_prefill" if "cost_with_prefill" in made else f"{sort}_predicted"]


def compare(
    model: Source,
    gpus: Sequence[str | Device],
    recipes: Sequence[str | Recipe | Precision],
    *,
    sort: Sort = "cost",
    prices: Mapping[str, float] | None = None,
    max_tp: int = 8,
    **options: Any,
) -> list[Candidate]:
    """Every recipe on every device, on the fewest devices (up to `max_tp`) that hold it.

    `prices` gives the price of a GPU-hour by device name, 1.0 where a name is missing; `options` are those of
    `plan`. Raises what `plan` raises for the model, the workload and names of devices and recipes; that a
    candidate does not fit, or that a device lacks its products, is a reason and no error.
    """
    shape = shape_of(model, options.pop("kv_heads", None))
    known = prices or {}
    found = []
    for gpu in gpus:
        device = gpu if isinstance(gpu, Device) else find_device(gpu)
        price = known.get(device.name, known.get(str(gpu), 1.0))
        found += [
            _candidate(shape, device, recipe, max_tp, {**options, "price": price}) for recipe in recipes
        ]
    return sorted(found, key=lambda candidate: candidate.key(sort))


def _candidate(
    shape: ModelShape,
    device: Device,
    recipe: str | Recipe | Precision,
    max_tp: int,
    options: dict[str, Any],
) -> Candidate:
    name = recipe.name if isinstance(recipe, Precision) else str(recipe)
    tp, reason = int(options.pop("tp", 1)), ""
    while tp <= max_tp:
        try:
            return Candidate(device.name, name, tp, plan(shape, device, recipe, tp=tp, **options))
        except CapacityError as error:
            reason = str(error)
            tp *= 2
        except (MissingPeakError, GroupSizeError) as error:
            return Candidate(device.name, name, tp, None, str(error))
        except PlanError as error:
            if error.param != "tp":
                raise
            return Candidate(device.name, name, tp, None, f"{reason}; {error}" if reason else str(error))
    return Candidate(device.name, name, tp // 2, None, reason)
