"""How many GPUs a promise on latency takes: a plan and its traffic, as the fleet simulation wants them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from tessera.planner.arrivals import ArrivalKind, Lengths, Renewals, Trace
from tessera.planner.errors import PlanError
from tessera.planner.fleet import Fleet, Level, Slo, alone_s, rate_of_users, size_fleet
from tessera.planner.planning import Plan
from tessera.planner.quantity import Quantity, finite, quantity
from tessera.planner.replica import Replica


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who asks, and how often. One of rate, users and trace.

    rate       requests a second
    users      people who each ask again think_s seconds after an answer
    trace      recorded requests, whose lengths then count instead of the workload's
    arrivals   how requests of a rate are spread: poisson, bursty (gaps of cv 3) or constant
    length_cv  spread of prompts and outputs around the workload's means; 0: all alike
    """

    rate: float | None = None
    users: int | None = None
    think_s: float = 30.0
    trace: Trace | None = None
    arrivals: ArrivalKind = "poisson"
    length_cv: float = 0.5

    def __post_init__(self) -> None:
        given = [name for name in ("rate", "users", "trace") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PlanError(
                f"traffic is given by {' and '.join(given) or 'nothing'}: one of rate, users, trace is needed"
            )


@dataclass(frozen=True, slots=True)
class Provision:
    """The smallest fleet for a plan's traffic, and what its output costs."""

    plan: Plan
    fleet: Fleet
    output: float

    @property
    def smallest(self) -> Level:
        return self.fleet.smallest

    @property
    def cost(self) -> Quantity:
        """Price of a million output tokens of the fleet as it is used."""
        price = self.plan.setting.price
        return quantity(
            "fleet_cost",
            "R/Mtok" if price == 1 else "$/Mtok",
            "1e6 * gpus * price / (3600 * rate * output)",
            gpus=self.smallest.gpus,
            price=price,
            rate=self.fleet.rate,
            output=self.output,
        )

    def to_json(self) -> dict[str, Any]:
        slo = self.fleet.slo
        return {
            "slo": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "share": slo.share},
            "rate": finite(self.fleet.rate),
            "smallest": _level(self.smallest),
            "tried": [_level(level) for level in self.fleet.tried],
            "cost": self.cost.to_json(),
        }


def provision(plan: Plan, traffic: Traffic, slo: Slo, seed: int = 0) -> Provision:
    """Fewest GPUs on which `traffic` keeps `slo`, each replica as `plan` says.

    Raises PlanError, UnreachableError.
    """
    replica = replica_of(plan)
    if traffic.trace is not None:
        requests = traffic.trace.requests
        _check_trace(plan, traffic.trace)
        output = sum(request.output for request in requests) / len(requests)
        return Provision(plan, size_fleet(replica, traffic.trace, slo, seed), output)
    prompt, tokens = lengths(plan)
    rate = traffic.rate
    if traffic.users is not None:
        rate = rate_of_users(traffic.users, traffic.think_s, alone_s(replica, prompt, tokens))
    assert rate is not None  # Traffic has exactly one of them
    cv = traffic.length_cv
    arrivals = Renewals(
        rate, Lengths(prompt, cv), Lengths(tokens, cv), traffic.arrivals, plan.model.max_position
    )
    return Provision(plan, size_fleet(replica, arrivals, slo, seed), tokens)


def _check_trace(plan: Plan, trace: Trace) -> None:
    """Raises PlanError for requests that the model cannot take, or that come all at once."""
    longest = max(request.prompt + request.output for request in trace.requests)
    if longest > plan.model.max_position:
        raise PlanError(
            f"a request of the trace has {longest} tokens, {plan.model.name} was made for "
            f"{plan.model.max_position}",
            param="trace",
        )
    if trace.rate == inf:
        raise PlanError(
            "all requests of the trace come at once: without a rate there is no price", param="trace"
        )


def lengths(plan: Plan) -> tuple[int, int]:
    """Mean prompt and output of a plan's requests. Raises PlanError where it has no workload."""
    load = plan.setting.workload
    if load is None:
        raise PlanError(
            "a fleet needs lengths of prompts and outputs: give a workload, or --prompt and --output",
            param="workload",
        )
    return load.prompt, load.output


def replica_of(plan: Plan) -> Replica:
    """What the simulation serves with: predicted times, and the plan's memory and batch."""
    step = plan.step.curve("predicted")
    hit = plan.setting.workload.prefix_hit if plan.setting.workload else 0.0
    prefill = plan.step.prefill(1, 0, plan.setting.prefill_efficiency).function("tokens", "cached")

    def prefill_s(prompt: int) -> float:
        computed = max(1.0, prompt * (1 - hit))
        return prefill(computed, prompt - computed)

    return Replica(
        step_s=step,
        prefill_s=prefill_s,
        kv_tokens=max(1, plan.kv_capacity_tokens),
        max_batch=plan.batch,
        gpus=plan.step.tp,
    )


def _level(level: Level) -> Mapping[str, Any]:
    return {
        "replicas": level.replicas,
        "gpus": level.gpus,
        "ttft_s": level.ttft_s,
        "tpot_s": level.tpot_s,
        "mean_batch": level.mean_batch,
        "load": level.load,
        "saturation": finite(level.saturation),
        "meets": level.meets,
    }
