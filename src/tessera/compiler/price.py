"""Predicted time of a graph on a GPU: bytes, matrix products, instructions, each against its own ceiling.

Closed form, no measurement of this kernel: the slowest of the resources, as if all others hid behind it. Only
the work at a group's end does not hide: it waits for the group's product, and its warps start no other
meanwhile (an H200 shows the sum of both, notes/2026-11-30-compiler.md). All that take at most half a percent
longer than the fastest rank by instructions issued, since what is not the bottleneck still costs power and
registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from tessera.compiler.errors import PriceError
from tessera.compiler.instructions import NOTHING, Cost, in_registers
from tessera.compiler.materialise import Materialised, Place, Product, materialise
from tessera.compiler.printing import formula
from tessera.compiler.propagate import Candidate
from tessera.hardware import Device, MissingPeakError
from tessera.spec import Grid

TOKEN_TILE: Final = 256
"""Most tokens of one tile: weights are unpacked once for so many."""

ROW_TILE: Final = 256
"""Weight rows of one tile: activations that need work in registers get it once for so many."""

TOKEN_STEP: Final = 8
"""Tokens that a matrix instruction takes at least."""

MULTIPLY_ADD_LANES: Final = 64
FLOAT_LANES: Final = 128
"""Lanes a clock and SM of integer and of floating multiply-adds (benchmarks/results/probe_h200.json)."""

TIE: Final = 0.005

OUTPUT_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Price:
    """What one candidate costs for m tokens.

    `weight` is the cost of one weight in registers; `output` of one output element outside of the matrix
    products, spread over all groups; `limits` are seconds by resource. `reason` says why it cannot run, else
    None.
    """

    candidate: Candidate
    materialised: Materialised
    bytes: int
    weight: Cost
    output: Cost
    limits: dict[str, float]
    launch: float
    issued: float
    reason: str | None

    @property
    def seconds(self) -> float:
        return max(self.limits.values()) + self.launch

    @property
    def bound(self) -> str:
        """The resource that takes longest."""
        return max(self.limits, key=lambda name: self.limits[name])

    @property
    def formula(self) -> str:
        return formula(self.candidate.graph.outputs[0])


def price(candidate: Candidate, m: int, device: Device) -> Price:
    """Price of a candidate for m tokens, the size of its axis m.

    Raises PriceError for a device whose rates are not known, BindError for a graph without that axis.
    """
    if device.sms == 0 or device.clock == 0:
        raise PriceError(f"{device.name} has no stated SMs and clock: give a GPU, or custom:…,sms=…,clock=…")
    padded = ceil(m / TOKEN_STEP) * TOKEN_STEP
    real = materialise(candidate.graph.bind({"m": m}))
    work = real if padded == m else materialise(candidate.graph.bind({"m": padded}))
    passes = ceil(padded / TOKEN_TILE)
    outputs = max(1, _outputs(work))
    weight, registers = _register_costs(work, passes)
    at_group_end, per_output = _output_costs(work)
    total = registers + per_output
    size = sum(s.bytes for s in real.stored) + _outputs(real) * OUTPUT_BYTES
    limits = {"memory": size / device.bandwidth}
    reason = _infeasible(work)
    try:
        products = sum(_product_seconds(p, device) for p in work.products)
        limits["matrix products"] = products + _one_after_another(at_group_end, device)
    except MissingPeakError as error:
        reason = reason or str(error)
    limits |= _pipes(total, device)
    return Price(
        candidate,
        real,
        size,
        weight,
        per_output * (1 / outputs),
        limits,
        device.kernel_seconds,
        total.issued,
        reason,
    )


def rank(candidates: Sequence[Candidate], m: int, device: Device) -> list[Price]:
    """Prices of all candidates, best first; those that cannot run last."""
    prices = [price(c, m, device) for c in candidates]
    tied = (1 + TIE) * min((p.seconds for p in prices if p.reason is None), default=0.0)
    return sorted(prices, key=lambda p: (p.reason is not None, max(p.seconds, tied), p.issued, p.bytes))


def _outputs(work: Materialised) -> int:
    total = 0
    for node in work.graph.outputs:
        size = 1
        for dim in node.shape:
            size *= dim.size or 1
        total += size
    return total


def _register_costs(work: Materialised, passes: int) -> tuple[Cost, Cost]:
    """(per weight of the largest product, total) of making operands out of codes."""
    weight, total, largest = NOTHING, NOTHING, 0
    summed = bool(work.sums)
    for p in work.products:
        if p.kind == "fp32":
            continue
        for operand, times in ((p.right, passes), (p.left, ceil(p.n / ROW_TILE))):
            elements = p.batch * p.k * (p.n if operand is p.right else p.m)
            steps = [s.step.op for s in operand.steps]
            own = NOTHING
            converted = p.kind == "fp16" and isinstance(operand.codes.dtype, Grid)
            if operand.constant or steps or converted:
                own = in_registers(operand.codes.dtype, steps, p.kind, bias_corrected=summed)
            total = total + own * (elements * times)
            if operand is p.right and elements > largest:
                weight, largest = own, elements
    for _, entries, operations in work.derived:
        total = total + Cost(imad=entries * operations * passes)
    return weight, total


def _output_costs(work: Materialised) -> tuple[Cost, Cost]:
    """(at the ends of groups, all) of the work on accumulators, sums and outputs.

    A multiply-add for a step and element, and a conversion where floats begin.
    """
    at_end, total = NOTHING, NOTHING
    in_operands = {s.key for p in work.products for o in (p.left, p.right) for s in o.steps}
    for step in work.placed:
        if step.place == Place.WEIGHT or step.node.key in in_operands:
            continue
        one = Cost(imad=1) if step.integer else Cost(alu=float(step.converts), fma=1)
        total = total + one * step.elements
        if step.grouped:
            at_end = at_end + one * step.elements
    for _, _, summed in work.sums:
        total = total + Cost(fma=summed)
    return at_end, total + Cost(fma=sum(p.multiply_adds for p in work.products if p.kind == "fp32"))


def _product_seconds(p: Product, device: Device) -> float:
    return 0.0 if p.kind == "fp32" else 2 * p.multiply_adds / device.peak(p.kind)


def _one_after_another(cost: Cost, device: Device) -> float:
    """Seconds of instructions that depend on one another: no pipe works beside another."""
    pipes = _pipes(cost, device)
    return sum(seconds for name, seconds in pipes.items() if name != "issue slots")


def _pipes(total: Cost, device: Device) -> dict[str, float]:
    lanes = device.sms * device.clock
    return {
        "integer pipe": total.alu / device.integer_ceiling,
        "integer multiply-adds": total.imad / (MULTIPLY_ADD_LANES * lanes),
        "float multiply-adds": total.fma / (FLOAT_LANES * lanes),
        "issue slots": total.issued / device.issue_ceiling,
    }


def _infeasible(work: Materialised) -> str | None:
    if work.overflowing:
        return f"{work.overflowing[0]} may leave int32 at this k"
    return None


@dataclass(frozen=True, slots=True)
class Span:
    """Token counts from `first` to `last` (of those asked for) with one winner."""

    first: int
    last: int
    winner: Price


def spans(candidates: Sequence[Candidate], device: Device, tokens: Sequence[int]) -> list[Span]:
    """Which candidate wins at which token counts, neighbours with one winner joined."""
    out: list[Span] = []
    for m in tokens:
        best = rank(candidates, m, device)[0]
        if out and out[-1].winner.candidate == best.candidate:
            out[-1] = Span(out[-1].first, m, out[-1].winner)
        else:
            out.append(Span(m, m, best))
    return out


def break_even(deferred: Price, eager: Price, group: int) -> float | None:
    """Tokens up to which deferring wins where instructions decide: m* = group x saved / added.

    Saved are the instructions of a weight that leave the registers, added those of one output at a group's
    end. None where nothing is saved or nothing added.
    """
    saved = eager.weight.issued - deferred.weight.issued
    groups = max((p.batch for p in deferred.materialised.products), default=1)
    added = (deferred.output.issued - eager.output.issued) / groups
    return group * saved / added if saved > 0 and added > 0 else None
