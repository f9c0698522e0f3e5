"""What 4-bit will buy, before anyone buys it: memory, floors, ceilings, time and price, with every formula.

Standard library only; imports `spec` and `hardware`.
"""

from tessera.planner.builtin import MODELS, REFERENCE_7B
from tessera.planner.comparison import Candidate, compare
from tessera.planner.decision import Decision, Verdict, decide, table
from tessera.planner.errors import (
    CapacityError,
    ModelFileError,
    PlanError,
    UnknownModelError,
    UnknownWorkloadError,
)
from tessera.planner.levers import LEVERS, Lever
from tessera.planner.model_shape import ModelShape, Part
from tessera.planner.planning import Plan, make_plan, plan
from tessera.planner.precision import BASELINES, Precision, precision_of, with_weights
from tessera.planner.quantity import Quantity, quantity, show
from tessera.planner.read_model import shape_of
from tessera.planner.setting import Draft, Setting
from tessera.planner.step import Efficiency, How, StepModel
from tessera.planner.workload import WORKLOADS, Workload, workload_of

__all__ = [
    "BASELINES", "LEVERS", "MODELS", "REFERENCE_7B", "WORKLOADS", "Candidate", "CapacityError", "Decision",
    "Draft", "Efficiency", "How", "Lever", "ModelFileError", "ModelShape", "Part", "Plan", "PlanError",
    "Precision", "Quantity", "Setting", "StepModel", "UnknownModelError", "UnknownWorkloadError", "Verdict",
    "Workload", "compare", "decide", "make_plan", "plan", "precision_of", "quantity", "shape_of", "show",
    "table", "with_weights", "workload_of",
]  # fmt: skip
