"""The plots of a plan: roofline, capacity, and where a decode step's time goes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tessera.planner.charts import Axis, Chart, Line, Mark, steps
from tessera.planner.levers import group_of
from tessera.planner.memory import check_recipe
from tessera.planner.planning import Plan
from tessera.planner.precision import Precision, precision_of
from tessera.planner.quantity import show
from tessera.planner.sections import limits
from tessera.planner.sections import step as step_section
from tessera.spec import GroupSizeError

STYLES: Final = ("c0", "c1", "c2", "c3", "c4", "c5")
BESIDE: Final = ("bf16", "w4a16-{group}", "fp8")
"""Formats whose capacity is drawn beside the plan's own."""
SAMPLES: Final = 60


def roofline(plan: Plan) -> Chart:
    """Roofs of the device; where weight products and whole steps of growing batch lie under them."""
    device, compute = plan.device, plan.precision.compute
    kinds = dict.fromkeys(["bf16", compute])
    peaks = {kind: device.peak(kind) for kind in kinds if device.has_peak(kind)}
    products, whole, titles = [], [], []
    for batch in batches(plan):
        section = step_section(plan.setting, batch)
        inputs = plan.step.products(batch).inputs
        active = 2 * batch * (inputs["linear"] + inputs["head"])
        moved = section["step_bytes"].inputs["weights"]
        products.append((active / moved, active / plan.step.products_bound(batch).value))
        operations, tpot = section["decode_operations"].value / plan.step.tp, section["tpot_predicted"].value
        whole.append((operations / section["step_bytes"].value, operations / tpot))
        titles.append(f"batch {batch}: {show(operations / tpot, 'op/s')}, TPOT {show(tpot, 's')}")
    low = min(x for x, _ in (*products, *whole)) / 2
    high = max(*(x for x, _ in products), 4 * max(peaks.values()) / device.bandwidth)
    lines = [
        Line(
            f"{kind} roof, {show(peak, 'op/s')}",
            [(x, min(x * device.bandwidth, peak)) for x in (low, peak / device.bandwidth, high)],
            f"roof {STYLES[i]}",
        )
        for i, (kind, peak) in enumerate(peaks.items())
    ]
    lines += [
        Line("weight products, bound", products, STYLES[2], titles),
        Line("whole step, predicted", whole, STYLES[3], titles),
    ]
    ys = [y for line in lines for _, y in line.points]
    return Chart(
        f"Roofline of {device.name}",
        Axis("operations per byte", low, high, 10),
        Axis("operations per second", min(ys) / 2, 2.5 * max(peaks.values()), 10),
        lines,
    )


def capacity(plan: Plan) -> Chart:
    """Sequences that fit, by context, with this recipe and others."""
    contexts = steps(256, max(512, plan.model.max_position), SAMPLES)
    lines: list[Line] = []
    for precision in _beside(plan):
        costs = replace(plan.step, precision=precision)
        free = plan.device.memory - plan.setting.reserve - costs.weights
        points = [(x, free / (costs.kv_per_token * x)) for x in contexts]
        held = [(x, y) for x, y in points if y >= 1]
        if held:
            own = precision.name == plan.precision.name
            style = f"own {STYLES[3]}" if own else STYLES[len(lines)]
            lines.append(Line(precision.name, held, style))
    here = (float(plan.context), max(1.0, plan["max_batch"].value))
    title = f"this plan: {int(here[1])} of {plan.context} tokens"
    lines.append(Line(title, [here], STYLES[3], [title]))
    most = max(y for line in lines for _, y in line.points)
    return Chart(
        f"Sequences that fit on {plan.device.name}",
        Axis("context, tokens", contexts[0], contexts[-1], 2),
        Axis("sequences", 1, 1.6 * most, 10),
        lines,
        legend="below",
    )


def breakdown(plan: Plan) -> Chart:
    """Milliseconds of a decode step, and of what takes them, over the batch."""
    most = max(2.0, plan["max_batch"].value, float(plan.batch))
    fixed = plan.step.kernels * plan.device.kernel_seconds
    time, context = plan.step.curve("predicted"), plan.setting.decode_context
    xs = steps(1, most, SAMPLES)

    def line(name: str, style: str, seconds: Callable[[float], float]) -> Line:
        return Line(name, [(x, 1e3 * seconds(x)) for x in xs], style)

    lines = [
        line("whole step", f"own {STYLES[3]}", lambda x: time(x, context)),
        line("attention: reading the cache", STYLES[1], lambda x: time(x, context) - time(x, 0)),
        line(
            "products, activations" + (", all-reduces" if plan.step.tp > 1 else ""),
            STYLES[0],
            lambda x: time(x, 0) - fixed,
        ),
    ]
    if fixed:
        lines.append(line("fixed costs of kernels", STYLES[5], lambda x: fixed))
    at = limits(plan.setting)
    marks = [
        Mark(f"knee, {at['knee'].value:.3g}", at["knee"].value),
        Mark(f"products bind, {at['crossover_batch'].value:.3g}", at["crossover_batch"].value),
    ]
    floor = min(y for line in lines for _, y in line.points)
    return Chart(
        "Where a decode step's time goes",
        Axis(f"batch, sequences of {context:.0f} tokens", 1, most, 2),
        Axis("milliseconds", floor / 2, 10e3 * time(most, context), 10),
        lines,
        marks,
    )


def batches(plan: Plan) -> list[int]:
    """1, 4, 16, … up to what fits, and the plan's own."""
    most = max(1, int(plan["max_batch"].value))
    powers = [4**i for i in range(12) if 4**i < most]
    return sorted({*powers, most, plan.batch})


def _beside(plan: Plan) -> list[Precision]:
    found = {plan.precision.name: plan.precision}
    for text in BESIDE:
        try:
            precision = precision_of(text.format(group=group_of(plan.model, plan.step.tp)))
            check_recipe(plan.model, precision)
        except GroupSizeError:
            continue
        found.setdefault(precision.name, precision)
    return [*list(found.values())[1:], plan.precision]
