"""Costs of kernels for plans out of measurements on an H200: `planner_h200.py --calibrate`.

Shares of bandwidth and peak come from products timed alone (`gemm_h200.json`). What a kernel costs beside its
bytes comes from traced decode steps, where kernels start while others end; a family of products that no step
was traced with has it from the products alone. Shares of a prefill come from whole prefills.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from statistics import mean
from typing import Any

from tessera.hardware import FAMILIES, KINDS, TILE, Device, ProductCosts
from tessera.hardware.kernels import VERSION
from tessera.planner import Part, StepModel, precision_of
from tessera.planner.memory import part_bytes, streamed_bytes
from tessera.planner.operations import family_of

Row = dict[str, Any]
TRACED = {"attention": "attention_us", "norms": "norm_us", "rotary": "rope_us", "int8_rows": "quantize_us",
          "activation": "activation_us", "products": "gemm_us"}  # fmt: skip
"""Operations of a plan and the kinds of a traced step; all else of the step is `ends`."""
TIMED = {("torch-cublas", "bf16"), ("tessera", "w4a16-g128"), ("tessera", "w4a8-g128"),
         ("tessera", "w4a8-chn"), ("tessera", "w8a8-chn")}  # fmt: skip
"""Products that say how a family runs: system and recipe of `gemm_h200.json`."""
SHARES = [x / 20 for x in range(10, 21)]
EXPOSED = [x / 20 for x in range(21)]


def operation_us(row: Row) -> dict[str, float]:
    """Microseconds of a traced step by operation of a plan; they add up to the step."""
    found = {name: row.get(key) or 0.0 for name, key in TRACED.items()}
    return found | {"ends": row["step_us"] - sum(found.values())}


def whole(row: Row, costs: StepModel) -> bool:
    """Whether the trace can have held all sequences: their K and V cannot be read far above the bandwidth, of
    which the best attention alone reached 1.04 (kernels_h200.json).
    """
    least = 0.95 * row["batch"] * row["context"] * costs.kv_per_token / costs.device.bandwidth
    return bool(row["attention_us"] * 1e-6 >= least)


def calibrated(steps: Sequence[tuple[Row, StepModel]], timed: Sequence[Row], date: str, source: str) -> Row:
    """What `hardware/kernels.json` is to hold. `steps`: rows of this engine, traced or with a prefill, each
    with its model; `timed`: rows of products.
    """
    device = steps[0][1].device
    traced = [(row, costs) for row, costs in steps if "gemm_us" in row]
    products = {family: _products(family, traced, timed, device) for family in FAMILIES}
    for family in FAMILIES:
        shares = list(_prefill_shares(family, steps))
        found = round(mean(shares), 3) if shares else products["library"].prefill
        products[family] = replace(products[family], prefill=found)
    seconds = _seconds(traced)
    assert seconds.keys() == set(KINDS), f"no whole trace of {', '.join(set(KINDS) - seconds.keys())}"
    return {
        "version": VERSION,
        "source": source,
        "date": date,
        "seconds": seconds,
        "products": {family: asdict(costs) for family, costs in products.items()},
    }


def _seconds(traced: Sequence[tuple[Row, StepModel]]) -> dict[str, float]:
    """Of one kernel by kind: what is left of it beside its bytes. A step counts by its part of errors:
    a microsecond of a short one more than of a long one.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row, costs in traced:
        us, weight = operation_us(row), row["step_us"] ** -2
        if whole(row, costs):
            read = row["batch"] * row["context"] * costs.kv_per_token / costs.device.bandwidth
            one = (us["attention"] * 1e-6 - read) / costs.model.layers
            found.setdefault("attention", []).append((one, weight))
        for operation in costs.between:
            found.setdefault(operation.kind, [])
            if not us[operation.name]:
                continue  # part of another kernel, or under a name that the trace did not know
            moved = row["batch"] * operation.bytes_per_token / costs.device.bandwidth
            one = (us[operation.name] * 1e-6 - moved) / operation.kernels
            found[operation.kind].append((one, weight))
    return {kind: round(max(0.0, _weighted(pairs)), 8) for kind, pairs in found.items()}


def _weighted(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in pairs) / (sum(weight for _, weight in pairs) or 1.0)


Point = tuple[int, int, float, float, float, float]
"""Products: how many and of how many tokens, microseconds of their bytes and of their operations at the
device's limits, microseconds measured, and of what an error is a share.
"""


def _products(
    family: str, traced: Sequence[tuple[Row, StepModel]], timed: Sequence[Row], device: Device
) -> ProductCosts:
    alone = list(_alone(family, timed, device))
    assert alone, f"no product of the family {family} was timed"
    tries = (_fitted(alone, *shares) for shares in product(SHARES, SHARES, EXPOSED))
    _, best = min(tries, key=lambda tried: tried[0])
    if in_steps := list(_in_steps(family, traced)):
        _, best = _fitted(in_steps, best.bandwidth, best.compute, best.exposed)
    return best


def _fitted(
    points: Sequence[Point], bandwidth: float, compute: float, exposed: float
) -> tuple[float, ProductCosts]:
    """The sum of squares that is left at these shares, and what products then cost beside bytes and
    operations by least squares, neither part below 0.
    """
    lines = []
    for kernels, tokens, read_us, operations_us, us, scale in points:
        longer, shorter = sorted((read_us / bandwidth, operations_us / compute), reverse=True)
        left = us - longer - exposed * shorter
        lines.append((kernels / scale, kernels * min(tokens, TILE) / TILE / scale, left / scale))
    aa, ab, bb, al, bl = (
        sum(x[i] * x[j] for x in lines) for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
    )
    both = ((al * bb - bl * ab) / (aa * bb - ab * ab), (bl * aa - al * ab) / (aa * bb - ab * ab))
    tries = [pair for pair in (both, (al / aa, 0.0), (0.0, bl / bb), (0.0, 0.0)) if min(pair) >= 0]

    def error(pair: tuple[float, float]) -> float:
        return sum((pair[0] * a + pair[1] * b - left) ** 2 for a, b, left in lines)

    few, more = min(tries, key=error)
    seconds, filled = round(1e-6 * few, 8), round(1e-6 * more, 8)
    return error((few, more)), ProductCosts(seconds, filled, bandwidth, compute, exposed, prefill=1.0)


def _in_steps(family: str, traced: Sequence[tuple[Row, StepModel]]) -> Iterator[Point]:
    for row, model in traced:
        if family_of(model.precision) == family:
            terms = model.operations(row["batch"], row["context"])["products"]
            read = float(streamed_bytes(model.model, model.precision, row["batch"])) / model.device.bandwidth
            operations, kernels = model.products(row["batch"]).value, int(terms.inputs["products"])
            yield kernels, row["batch"], 1e6 * read, 1e6 * operations, row["gemm_us"], row["step_us"]


def _alone(family: str, timed: Sequence[Row], device: Device) -> Iterator[Point]:
    for row in timed:
        if row["op"] != "gemm" or (row["system"], row["recipe"]) not in TIMED or not row.get("us"):
            continue
        precision = precision_of(row["recipe"])
        if family_of(precision) == family:
            stored = part_bytes(Part("weights", "linear", row["n"], row["k"], 1), precision)
            operations = 2 * row["m"] * row["n"] * row["k"]
            peak = device.peak(precision.compute)
            read = stored / device.bandwidth
            yield 1, row["m"], 1e6 * read, 1e6 * operations / peak, row["us"], row["us"]


def _prefill_shares(family: str, steps: Sequence[tuple[Row, StepModel]]) -> Iterator[float]:
    """Share of the peak that each prefill kept up, kernels between the products left aside."""
    for row, costs in steps:
        if row.get("prefill_tok_s") and family_of(costs.precision) == family:
            planned = costs.prefill(row["prompt"])
            products = costs.prefill(row["prompt"], efficiency=1.0).value
            between = planned.value - products / planned.inputs["efficiency"]
            yield products / (row["prompt"] / row["prefill_tok_s"] - between)
