"""Everything that a plan is made from, checked."""

from dataclasses import asdict, dataclass
from typing import Any

from tessera.hardware import Device
from tessera.planner.model_shape import ModelShape
from tessera.planner.precision import Precision
from tessera.planner.read_model import Source
from tessera.planner.step import StepModel
from tessera.planner.workload import Workload
from tessera.spec import Recipe


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model for speculative decoding; `recipe` None: QoQ in the largest group that fits it.

    drafted     tokens guessed before each pass of the target
    acceptance  chance of each guess, given those before it were right
    """

    model: Source
    recipe: str | Recipe | Precision | None = None
    acceptance: float = 0.7
    drafted: int = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on devices (`step`), what it is used for, and the operator's terms.

    context             tokens that memory must hold for each sequence
    reserve             bytes of each device kept free
    price               of a GPU-hour
    prefill_efficiency  share of the peak; None: as measured
    """

    step: StepModel
    context: int
    workload: Workload | None = None
    reserve: float = 4e9
    price: float = 1.0
    prefill_efficiency: float | None = None
    draft: Draft | None = None

    @property
    def model(self) -> ModelShape:
        return self.step.model

    @property
    def device(self) -> Device:
        return self.step.device

    @property
    def precision(self) -> Precision:
        return self.step.precision

    @property
    def decode_context(self) -> float:
        """Tokens that an average decode step attends to in each sequence: the workload's mean, else all."""
        return self.workload.mean_context if self.workload else self.context

    @property
    def prompt(self) -> float:
        """Tokens of a prompt."""
        return self.workload.prompt if self.workload else self.context

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "gpu": self.device.name,
            "recipe": self.precision.name,
            "tp": self.step.tp,
            "context": self.context,
            "kv_heads": self.model.kv_heads,
            "kv_params": self.step.kv_params,
            "reserve": self.reserve,
            "price": self.price,
            "workload": None if self.workload is None else asdict(self.workload),
            "sources": {
                name: self.device.source(name)
                for name in ("memory", "bandwidth", "peaks", "kernel_seconds", "link")
            },
        }
