"""The board model of dequantization (seed 004, section 15.5): instructions per weight against issue slots.

An explicit model, not a measurement: a kernel unpacks every weight once a pass, with `k` instructions of one
lane each. What hides under memory traffic or products is said by the caller.
"""

from dataclasses import dataclass
from typing import Final

from tessera.hardware import Device
from tessera.planner.errors import PlanError
from tessera.planner.quantity import Quantity, positive, quantity
from tessera.planner.roofline import Number


@dataclass(frozen=True, slots=True)
class Scheme:
    """Instructions a weight on the integer pipe and on the multiply-add pipe."""

    name: str
    integer: float
    multiply_add: float
    source: str

    @property
    def instructions(self) -> float:
        return self.integer + self.multiply_add


SCHEMES: Final = {
    s.name: s
    for s in (
        Scheme("lecture-naive", 4.0, 0.0, "seed 004, 15.5: mask, subtract, multiply, convert"),
        Scheme("lecture-progressive", 2.0, 0.0, "seed 004, exercise 2: subtract and multiply in integers"),
        Scheme("qserve-g128", 1.75, 0.25, "counted in QServe's W4A8 per-group kernel"),
        Scheme("int4-to-fp8-table", 1.375, 0.0, "counted in CUTLASS' mixed-input example"),
        Scheme("int4-to-fp16-to-int8", 1.25, 1.0, "counted in QQQ's per-group kernel"),
        Scheme("one-imad-u8", 0.375, 0.25, "AND, SHR, AND and two IMAD for 8 weights: this package's"),
        Scheme("per-channel-u4", 0.375, 0.0, "AND, SHR, AND for 8 weights"),
    )
}
"""Ways to unpack 4-bit weights for 8-bit products."""


def scheme_of(name: str) -> Scheme:
    """Raises PlanError naming the known ones."""
    if name not in SCHEMES:
        raise PlanError(f"no dequantization {name!r}: known are {', '.join(SCHEMES)}", param="dequantization")
    return SCHEMES[name]


def issue_ceiling(device: Device) -> Quantity:
    """Instructions of one lane a second that the schedulers can issue."""
    return quantity(
        "issue_ceiling",
        "instr/s",
        "sms * schedulers * 32 * clock",
        sms=device.sms,
        schedulers=device.schedulers,
        clock=device.clock,
    )


def integer_ceiling(device: Device) -> Quantity:
    """Instructions of one lane a second of the integer pipe, half of what can be issued."""
    return quantity(
        "integer_ceiling",
        "instr/s",
        "sms * lanes * clock",
        sms=device.sms,
        lanes=device.integer_lanes,
        clock=device.clock,
    )


def dequant_instructions(parameters: Number, k: float) -> Quantity:
    """Instructions of one pass over the weights."""
    positive(k=k)
    return quantity("dequant_instructions", "instr", "k * parameters", k=k, parameters=parameters)


def dequant_time(parameters: Number, k: float, ceiling: Number) -> Quantity:
    """Seconds of one pass if nothing else issues: the same at every batch."""
    positive(k=k)
    return quantity(
        "dequant_time", "s", "k * parameters / ceiling", k=k, parameters=parameters, ceiling=ceiling
    )


def scheme_time(parameters: Number, scheme: Scheme, device: Device) -> Quantity:
    """Seconds of one pass of a scheme: issue slots or the integer pipe, whichever takes longer."""
    return quantity(
        "dequant_time",
        "s",
        "parameters * max((integer + multiply_add) / issue, integer / pipe)",
        parameters=parameters,
        integer=scheme.integer,
        multiply_add=scheme.multiply_add,
        issue=device.issue_ceiling,
        pipe=device.integer_ceiling,
    )


def unoverlapped(step: Number, dequant: Number) -> Quantity:
    """A step with dequantization added: nothing hides it."""
    return quantity("step_unoverlapped", "s", "step + dequant", step=step, dequant=dequant)


def overlapped(step: Number, dequant: Number) -> Quantity:
    """A step under which dequantization hides as far as it can."""
    return quantity("step_overlapped", "s", "max(step, dequant)", step=step, dequant=dequant)


def instructions_at_floor(floor: Number, parameters: Number, ceiling: Number) -> Quantity:
    """Instructions a weight at which dequantization takes as long as the floor: unoverlapped it doubles it,
    overlapped it just fits."""
    return quantity(
        "instructions_at_floor",
        "instr/weight",
        "floor_time * ceiling / parameters",
        floor_time=floor,
        ceiling=ceiling,
        parameters=parameters,
    )


def naive_loses_from(
    w8_bytes: Number, dequant: Number, parameters: Number, peak: float, bandwidth: float, w4_bytes: Number
) -> Quantity:
    """Batch from which W4A8 with unoverlapped dequantization is slower than W8A8.

    Per step, W8A8 takes max(w8 bytes / bandwidth, c B), and W4A8 dequant + max(w4 bytes / bandwidth, c B),
    with c = 2 parameters / peak. While both are bound by memory the 4-bit side wins if dequantization costs
    less than the bytes it saves; once c B exceeds the 4-bit bytes they are equal where dequant + c B =
    w8 bytes / bandwidth. 0: it loses at every batch. Infinite where dequantization costs nothing.
    """
    return quantity(
        "naive_w4a8_loses_from",
        "sequences",
        "0 if dequant + w4 / bandwidth >= w8 / bandwidth else"
        " (w8 / bandwidth - dequant) * peak / (2 * parameters) if dequant > 0 else 1 / 0",
        w8=w8_bytes,
        w4=w4_bytes,
        dequant=dequant,
        parameters=parameters,
        peak=peak,
        bandwidth=bandwidth,
    ).noted("0: at every batch")


def cached_copy(w4_bytes: Number, w8_bytes: Number, bandwidth: float) -> Quantity:
    """Step floor when the weights are unpacked once and the int8 copy is kept and read instead.

    The copy lives in the same memory and is what every step reads: W8A8's floor, with the 4-bit bytes held
    for nothing.
    """
    floor = quantity("cached_int8_copy_floor", "s", "w8 / bandwidth", w8=w8_bytes, bandwidth=bandwidth)
    given_up = float(w4_bytes) / bandwidth
    return floor.noted("W8A8's floor, and both copies held").beside(floor_that_it_gives_up=given_up)
