"""One plan: memory, limits, time and price of a model on a device by a recipe, every formula included."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from tessera.hardware import Device, find_device
from tessera.planner import board, extras, sections
from tessera.planner.errors import CapacityError, PlanError
from tessera.planner.model_shape import ModelShape
from tessera.planner.precision import KvParams, Precision, precision_of
from tessera.planner.quantity import Quantity, positive, show
from tessera.planner.read_model import Source, shape_of
from tessera.planner.setting import Draft, Setting
from tessera.planner.step import How, StepModel
from tessera.planner.workload import Workload, workload_of
from tessera.spec import Recipe

GB = 1e9


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model costs on a device. `sections` holds every quantity by its id, grouped by title.

    batch    sequences decoded together: the one asked for, or the most that memory holds
    context  tokens of each sequence
    notes    one sentence for each thing that a reader should know
    step     costs as plain numbers, for other batches and contexts
    """

    setting: Setting
    batch: int
    sections: Mapping[str, Mapping[str, Quantity]]
    notes: tuple[str, ...]

    @property
    def model(self) -> ModelShape:
        return self.setting.model

    @property
    def device(self) -> Device:
        return self.setting.device

    @property
    def precision(self) -> Precision:
        return self.setting.precision

    @property
    def context(self) -> int:
        return self.setting.context

    @property
    def step(self) -> StepModel:
        return self.setting.step

    def __getitem__(self, name: str) -> Quantity:
        """The quantity of that id. Raises KeyError."""
        for section in self.sections.values():
            if name in section:
                return section[name]
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(name in section for section in self.sections.values())

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the caches of one replica hold."""
        return int(float(self["free_for_kv"]) // self.step.kv_per_token)

    def step_seconds(self, batch: float, context: float, how: How = "predicted") -> float:
        """Seconds of a decode step; `how` is bound, by_operation or predicted."""
        return self.step.decode(how, batch, context).value

    def prefill_seconds(self, tokens: float, cached: float = 0.0) -> float:
        """Seconds to compute `tokens` of a prompt behind `cached` others."""
        return self.step.prefill(tokens, cached, self.setting.prefill_efficiency).value

    def explain(self) -> str:
        """Every formula with its numbers, section by section."""
        lines: list[str] = []
        for title, section in self.sections.items():
            lines += [title, *(f"  {q.explain()}" for q in section.values()), ""]
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Inputs and every quantity, in plain JSON."""
        return {
            **self.setting.to_json(),
            "batch": self.batch,
            "sections": {
                title: {name: q.to_json() for name, q in section.items()}
                for title, section in self.sections.items()
            },
            "notes": list(self.notes),
        }


def plan(
    model: Source,
    gpu: str | Device = "h100",
    recipe: str | Recipe | Precision = "qoq-g128",
    *,
    context: int | None = None,
    batch: int | None = None,
    workload: str | Workload | None = None,
    kv_heads: int | None = None,
    kv_params: KvParams = "counted",
    reserve_gb: float = 4.0,
    tp: int = 1,
    price: float = 1.0,
    prefill_efficiency: float | None = None,
    dequantization: str = "one-imad-u8",
    overlapped: bool = True,
    draft: Draft | None = None,
) -> Plan:
    """Plan `model` (built-in name, directory, GGUF file, ModelConfig or ModelShape) on `gpu` by `recipe`.

    context             tokens a sequence may come to hold (default: the workload's, else 4096, or the model's
                        longest where that is shorter)
    batch               sequences decoded together; None: the workload's, else what memory holds
    kv_heads            in place of the model's own
    kv_params           whether scales and minima of a quantized cache are counted ("none": as the lecture)
    reserve_gb          memory kept free of weights and cache, on each device
    tp                  devices that share the model by tensor parallelism
    price               of a GPU-hour; 1.0 gives prices in multiples of it
    prefill_efficiency  share of the peak that a prefill reaches; None: as measured
    dequantization      how 4-bit weights are unpacked, one of `board.SCHEMES`
    overlapped          whether unpacking hides under memory traffic and products, or adds to them
    draft               of speculative decoding

    Raises UnknownModelError, ModelFileError, UnknownDeviceError, CustomDeviceError, RecipeError,
    GroupSizeError, UnknownWorkloadError, PlanError, CapacityError.
    """
    positive(tp=tp, price=price)
    if not 0 <= reserve_gb < inf:
        raise PlanError(f"reserve_gb is {reserve_gb}: it cannot be negative or unbounded", param="reserve_gb")
    if prefill_efficiency is not None:
        positive(prefill_efficiency=prefill_efficiency)
    shape = shape_of(model, kv_heads)
    load = workload_of(workload) if workload is not None else None
    setting = Setting(
        step=StepModel(
            shape,
            gpu if isinstance(gpu, Device) else find_device(gpu),
            precision_of(recipe),
            tp=tp,
            kv_params=kv_params,
            dequant=board.scheme_of(dequantization),
            hidden=overlapped,
        ),
        context=_context(shape, context, load),
        workload=load,
        reserve=reserve_gb * GB,
        price=price,
        prefill_efficiency=prefill_efficiency,
        draft=draft,
    )
    return make_plan(setting, batch)


def make_plan(setting: Setting, batch: int | None = None) -> Plan:
    """The plan of a complete setting. Raises as `plan` does."""
    memory = sections.memory(setting)
    most = int(float(memory["max_batch"]))
    if most < 1:
        raise CapacityError(_arithmetic(setting, memory), param="gpu")
    wanted = batch if batch is not None else setting.workload.batch if setting.workload else None
    if wanted is not None:
        positive(batch=wanted)
    notes = []
    if wanted is not None and wanted > most:
        notes.append(
            f"A batch of {wanted} does not fit: memory holds {most} sequences of {setting.context} tokens."
        )
    used = wanted or most
    found = {
        "memory": memory,
        "limits": sections.limits(setting),
        "step": sections.step(setting, used),
        "other KV convention": sections.other_convention(setting, wanted),
        "dequantization": sections.dequantization(setting, used),
        "prefill": sections.prefill(setting, used),
        "workload": sections.workload(setting, used, memory["free_for_kv"]),
        "speculative decoding": extras.speculate(setting, used, setting.draft) if setting.draft else {},
        "group sizes": extras.group_tax(setting),
        "sparsity": {
            k: q for n, m in ((2, 4), (4, 8), (8, 16)) for k, q in extras.sparse(setting, n, m).items()
        },
        "4-bit activations": extras.w4a4(setting, used),
    }
    named = {
        title: {name: replace(q, name=name) for name, q in section.items()}
        for title, section in found.items()
        if section
    }
    return Plan(setting, used, named, tuple(notes))


def _context(model: ModelShape, context: int | None, load: Workload | None) -> int:
    wanted = context if context is not None else load.context if load else min(4096, model.max_position)
    positive(context=wanted)
    if load and wanted < load.context:
        raise PlanError(
            f"context {wanted} is less than the {load.context} tokens of {load.name}, prompt {load.prompt} "
            f"and output {load.output}",
            param="context",
        )
    if wanted > model.max_position:
        raise PlanError(
            f"context {wanted} exceeds the {model.max_position} positions that {model.name} was made for",
            param="context",
        )
    return wanted


def _arithmetic(setting: Setting, memory: Mapping[str, Quantity]) -> str:
    """Why not one sequence fits, and what would help."""
    step, device = setting.step, setting.device
    one = float(memory["kv_per_sequence"])
    missing = one - float(memory["free_for_kv"])
    fixes = []
    room = float(memory["free_for_kv"]) / step.kv_per_token
    if room >= 1:
        fixes.append(f"a context of at most {int(room)}")
    weights = step.weights * step.tp
    for tp in (2, 4, 8, 16):
        if tp > step.tp and weights / tp + setting.reserve + one < device.memory:
            fixes.append(f"tp={tp}")
            break
    if step.precision.weight_bits > 4:
        fixes.append("4-bit weights (qoq-g128)")
    return (
        f"weights {show(step.weights, 'B')} + reserve {show(setting.reserve, 'B')} + one sequence of "
        f"{setting.context} tokens {show(one, 'B')} exceed the {show(device.memory, 'B')} of {device.name} "
        f"by {show(missing, 'B')}: take {', or '.join(fixes) or 'a larger device'}"
    )
