"""Measured over predicted: rows of `tessera bench throughput` beside the plan of the same case."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tessera.cli.results import Row
from tessera.errors import TesseraError
from tessera.hardware import Device, device_of_product, find_device
from tessera.planner import plan
from tessera.planner.read_model import stored_recipe
from tessera.spec import Recipe

TOLERANCE: Final = 0.15
"""A measured time off by more than this share of the predicted one is flagged."""


class NoPlanError(TesseraError):
    """The device that was measured is not one that can be planned for. Says how to make it one."""


@dataclass(frozen=True, slots=True)
class Step:
    """Milliseconds of one step of a case: what the plan said, and what it took."""

    case: str
    step: str
    predicted_ms: float
    measured_ms: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_ms / self.predicted_ms

    @property
    def off(self) -> bool:
        return abs(self.ratio - 1) > TOLERANCE


def steps(rows: Sequence[Row], model: str, kind: str, dtype: str = "auto") -> list[Step]:
    """Prefill and decode steps of our own rows against the plan for device `kind`, cpu or cuda.

    A prefill step is a case's prompts, a decode step has half of the output behind it.
    Raises NoPlanError, and what `plan` raises.
    """
    device = plannable(kind)
    recipe = recipe_of(model, kind, dtype)
    found: list[Step] = []
    for row in rows:
        if row["system"] == "tessera":
            found += _case(row, model, device, recipe)
    return found


def _case(row: Row, model: str, device: Device, recipe: str | Recipe) -> list[Step]:
    batch, prompt, output = (int(row[name] or 0) for name in ("batch", "prompt", "output"))
    made = plan(model, device, recipe, context=prompt + output, batch=batch, reserve_gb=0.0)
    case = f"{batch}x{prompt}x{output}"
    measured = 1e3 * batch * prompt / float(row["prefill_tok_s"] or 1)
    found = [Step(case, "prefill", 1e3 * batch * made.prefill_seconds(prompt), measured)]
    if output > 1:  # else nothing was decoded
        decode = made.step_seconds(batch, prompt + output / 2)
        found.append(Step(case, "decode", 1e3 * decode, float(row["tpot_ms"] or 0)))
    return found


def plannable(kind: str) -> Device:
    """The device that ran, as the planner knows it. Raises NoPlanError."""
    name = "cpu"
    if kind == "cuda":
        from tessera.kernels.cuda import device

        product = device.current().name
        name = device_of_product(product) or product.lower().replace(" ", "-")
    try:
        return find_device(name)
    except TesseraError as error:
        raise NoPlanError(f"--against-plan: {error}") from error


def recipe_of(model: str, kind: str, dtype: str) -> str | Recipe:
    """What a model is served as: a checkpoint's own recipe, else the floats that the device computes in."""
    floats = "fp32" if kind == "cpu" else {"f16": "fp16"}.get(dtype, "bf16")
    return stored_recipe(model) or floats


def columns(rows: Sequence[Row], found: Sequence[Step]) -> list[Row]:
    """Rows with `predicted_prefill_ms`, `predicted_tpot_ms` and the ratios of our own cases added."""
    by_case = {(step.case, step.step): step for step in found}
    added: list[Row] = []
    for row in rows:
        case = f"{row['batch']}x{row['prompt']}x{row['output']}"
        more: dict[str, float] = {}
        for kind, name in (("prefill", "prefill"), ("decode", "tpot")):
            step = by_case.get((case, kind))
            if step and row["system"] == "tessera":
                more |= {f"predicted_{name}_ms": step.predicted_ms, f"{name}_over_plan": step.ratio}
        added.append({**row, **more})
    return added
