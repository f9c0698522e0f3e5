"""A plan as tables: the rows that people ask about. `Plan.explain` and `Plan.to_json` have every quantity."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.planner.comparison import Candidate, compared_by
from tessera.planner.decision import Decision
from tessera.planner.planning import Plan
from tessera.planner.provision import Provision
from tessera.planner.quantity import Quantity, show


@dataclass(frozen=True, slots=True)
class View:
    """One table."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


ROWS: Final = (
    ("parameters", "parameters"),
    ("weights", "weights"),
    ("weights_per_device", "weights of each device"),
    ("bits_per_weight", "bits per weight, scales counted"),
    ("kv_per_token", "KV cache per token"),
    ("free_for_kv", "free for KV cache"),
    ("max_batch", "most sequences at once"),
    ("floor_batch_1", "floor of a step, batch 1"),
    ("knee", "knee: KV bytes = weight bytes"),
    ("crossover_batch", "products bind from batch"),
    ("tpot", "step, bytes or products (bound)"),
    ("tpot_by_operation", "step, operation by operation"),
    ("tpot_predicted", "step, predicted"),
    ("speculative_gain", "speculative decoding"),
    ("throughput_predicted", "decode throughput"),
    ("cost_predicted", "price of decoding"),
    ("prefill_time", "prefill of a prompt"),
    ("ttft", "time to the first token"),
    ("throughput_with_prefill", "throughput, prompts computed too"),
    ("cost_with_prefill", "price, prompts computed too"),
    ("prefill_share", "share of the time for prompts"),
    ("session_capacity", "sessions held"),
)
"""Ids of quantities and what a person calls them; those that a plan lacks are left out."""


def views(
    plan: Plan, decision: Decision, candidates: Sequence[Candidate], fleet: Provision | None
) -> Iterator[View]:
    """The tables, in the order they are read."""
    yield summary(plan)
    yield operations(plan)
    yield verdicts(decision)
    if candidates:
        yield side_by_side(candidates)
    if fleet:
        yield provisioned(fleet)


def heading(plan: Plan) -> str:
    """What was planned, in a line."""
    load = plan.setting.workload
    devices = plan.device.name + (f" x {plan.step.tp}" if plan.step.tp > 1 else "")
    use = f", {load.name} ({load.prompt} + {load.output} tokens)" if load else ""
    return (
        f"{plan.model.name} as {plan.precision.name} on {devices}: "
        f"{plan.batch} sequence{'' if plan.batch == 1 else 's'} of {plan.context} tokens{use}"
    )


def summary(plan: Plan) -> View:
    rows = [(label, plan[name].text, remark(plan, name)) for name, label in ROWS if name in plan]
    return View(heading(plan), ("", "value", "beside it"), rows)


def remark(plan: Plan, name: str) -> str:
    """What stands beside a value: the other convention, or what follows from it."""
    other = next((n for section in plan.sections.values() for n in section if n.startswith(f"{name}.")), None)
    if other:
        return f"{plan[other].text} with KV parameters {_convention(other)}"
    beside = "; ".join(f"{show(v, plan[name].unit)} {label}" for label, v in plan[name].also.items())
    rates = {"floor_batch_1": "tok/s", "tpot": "throughput", "tpot_by_operation": "throughput_by_operation"}
    match rates.get(name):
        case "tok/s":
            return f"{show(1 / plan[name].value, 'tok/s')}"
        case str(rate) if rate in plan:
            return plan[rate].text
        case _:
            return beside


def _convention(name: str) -> str:
    return "left out" if name.endswith("none") else "counted"


OPERATIONS: Final = {
    "products": "products",
    "attention": "attention",
    "norms": "norms",
    "rotary": "rotary embedding, append",
    "int8_rows": "int8 rows",
    "activation": "SiLU·mul",
    "ends": "inputs, sampling, logits",
    "rest": "what nothing hides",
}
"""Operations of a predicted step and what a person calls them."""


def operations(plan: Plan) -> View:
    """Where the predicted step goes; what kernels cost is what neither bytes nor operations explain."""
    rows = []
    for name, label in OPERATIONS.items():
        if (found := f"predicted_{name}") in plan:
            time = plan[found]
            fixed = time.value - time.at(**{f"{name}_each": 0.0, "filled": 0.0})
            share = time.value / plan["tpot_predicted"].value
            rows.append((label, time.text, f"{share:.0%}", show(fixed, "s")))
    title = f"Where a predicted step of {plan.batch} goes"
    return View(title, ("operation", "time", "of the step", "of that, fixed cost of kernels"), rows)


def verdicts(decision: Decision) -> View:
    rows = [
        (v.lever, v.text, _gain(v.gain), _gain(v.on_top), "yes" if v.pays else "no")
        for v in decision.verdicts.values()
    ]
    title = f"Does 4-bit pay here? {decision.regime}, batch {decision.batch}"
    return View(title, ("lever", "verdict", "alone", "on top of the others", "pays"), rows)


def _gain(gain: Quantity) -> str:
    return "makes it fit" if gain.value == float("inf") else f"{gain.value:.2f} x"


def side_by_side(candidates: Sequence[Candidate]) -> View:
    columns = ("device", "recipe", "GPUs", "weights", "batch", "TPOT", "throughput", "price", "")
    return View("Compared", columns, [_candidate(candidate) for candidate in candidates])


def _candidate(candidate: Candidate) -> tuple[str, ...]:
    made = candidate.plan
    if made is None:
        return (
            candidate.gpu,
            candidate.recipe,
            str(candidate.tp),
            *("-" for _ in range(5)),
            candidate.reason,
        )
    return (
        candidate.gpu,
        candidate.recipe,
        str(candidate.tp),
        made["weights"].text,
        str(made.batch),
        compared_by(made, "latency").text,
        compared_by(made, "throughput").text,
        compared_by(made, "cost").text,
        "",
    )


def provisioned(found: Provision) -> View:
    slo, share = found.fleet.slo, f"{found.fleet.slo.share:.0%}"
    promise = [
        f"{name} <= {1e3 * value:g} ms"
        for name, value in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s))
        if value is not None
    ]
    title = (
        f"Fleet for {found.fleet.rate:.4g} requests/s, {' and '.join(promise) or 'any latency'} for {share}"
    )
    columns = ("GPUs", "replicas", f"TTFT {share}", f"TPOT {share}", "mean batch", "of capacity", "keeps it")
    rows = [
        (
            str(level.gpus),
            str(level.replicas),
            show(level.ttft_s, "s"),
            show(level.tpot_s, "s"),
            f"{level.mean_batch:.1f}",
            f"{level.saturation:.0%}",
            "yes" if level.meets else "no",
        )
        for level in found.fleet.tried
    ]
    gpus = found.smallest.gpus
    rows.append((f"{gpus} GPU{'' if gpus == 1 else 's'}", "", "", "", "", "", found.cost.text))
    return View(title, columns, rows)
