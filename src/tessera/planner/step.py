"""Seconds of a decode step and of a prefill, as formulas of batch and context.

Three answers to what a step takes, each a lower bound of the next:

bound         the lecture's: all bytes over the bandwidth, or all products where they take longer
by_operation  products and attention one after the other, each bound by its bytes or its operations
predicted     the same at the shares of bandwidth and peak that kernels were measured to reach, with the
              fixed cost of every kernel and the activations between them: what a step should measure
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from tessera.hardware import (
    KERNEL_SECONDS,
    SHEET_BANDWIDTH,
    SHEET_PEAK,
    TILE,
    Device,
    kernel_costs,
    relative_cost,
)
from tessera.planner.board import SCHEMES, Scheme, scheme_time
from tessera.planner.memory import active_parameters, bytes_by_role, kv_bytes_per_token, read_formula
from tessera.planner.model_shape import ModelShape
from tessera.planner.operations import PRODUCTS_PER_LAYER, Operation, between_products, family_of
from tessera.planner.parallel import ALL_REDUCE, check_groups, check_link, check_split, kv_share
from tessera.planner.precision import KvParams, Precision
from tessera.planner.quantity import Quantity, quantity

How = Literal["bound", "by_operation", "predicted"]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of bandwidth and peak that kernels reach (notes/2026-11-30-planner.md).

    products   of the bandwidth, by linear layers bound by memory
    attention  of the bandwidth, by decode attention
    compute    of the peak, by linear layers bound by operations
    prefill    of the peak, by products and attention of a prefill
    exposed    of linear layers' bytes and operations, the share of the shorter that the longer does not hide
    """

    products: float
    attention: float
    compute: float
    prefill: float
    exposed: float = 0.0


OF_PROCESSOR: Final = Efficiency(products=0.92, attention=0.93, compute=0.90, prefill=0.82)
"""Of what the best simple kernel reached there: 2 cores with AVX-512 VNNI."""

SHEET_PREFILL: Final = 0.50
"""Of a data sheet's peak, by a whole prefill: the lecture's half."""


@dataclass(frozen=True)
class StepModel:
    """Costs of `model` stored by `precision` on `tp` devices; bytes and parameters are those of one device.

    dequant     how 4-bit weights are unpacked
    hidden      whether unpacking overlaps with memory traffic and products; otherwise it adds to them
    efficiency  for predictions; None: what kernels were measured to reach, of measured or data sheet values
                as the device has them

    Raises PlanError where the heads do not divide among the devices, GroupSizeError where a group would be
    cut.
    """

    model: ModelShape
    device: Device
    precision: Precision
    tp: int = 1
    kv_params: KvParams = "counted"
    dequant: Scheme = SCHEMES["one-imad-u8"]
    hidden: bool = True
    efficiency: Efficiency | None = None

    def __post_init__(self) -> None:
        check_split(self.model, self.tp)
        check_groups(self.model, self.precision.recipe, self.tp)
        if self.tp > 1:
            check_link(self.device)

    @cached_property
    def reached(self) -> Efficiency:
        """Shares of bandwidth and peaks that predictions use."""
        if self.efficiency:
            return self.efficiency
        if self._in_turn:
            return OF_PROCESSOR
        costs = kernel_costs().products[family_of(self.precision)]
        if self.device.measured:
            return Efficiency(costs.bandwidth, 1.0, costs.compute, costs.prefill, costs.exposed)
        products, compute = SHEET_BANDWIDTH * costs.bandwidth, SHEET_PEAK * costs.compute
        return Efficiency(products, SHEET_BANDWIDTH, compute, SHEET_PREFILL, costs.exposed)

    @cached_property
    def between(self) -> tuple[Operation, ...]:
        """Operations of a step beside products and attention."""
        return tuple(between_products(self.model, self.precision, self.tp))

    @cached_property
    def kv_per_token(self) -> float:
        """Bytes of cache of one token on each device."""
        whole = kv_bytes_per_token(self.model, self.precision.kv, self.kv_params)
        return float(whole) * kv_share(self.model, self.tp)

    @cached_property
    def weights(self) -> float:
        """Bytes of weights that each device holds."""
        return sum(bytes_by_role(self.model, self.precision).values()) / self.tp

    @cached_property
    def unpack(self) -> float:
        """Seconds of unpacking all weights once; 0 where nothing is unpacked or no issue ceiling is known."""
        if (
            not self.precision.needs_dequantization
            or self.device.dequantizes_int4
            or not self.device.issue_ceiling
        ):
            return 0.0
        weights = sum(p.parameters for p in self.model.parts() if p.role in ("linear", "expert"))
        return float(scheme_time(weights / self.tp, self.dequant, self.device))

    @cached_property
    def kernels(self) -> float:
        """Kernels of a step, each counted as often as it costs the device's `kernel_seconds`."""
        counts = {
            f"product:{family_of(self.precision)}": self._product_kernels,
            "attention": self.model.layers,
        }
        for operation in self.between:
            counts[operation.kind] = operation.kernels
        return sum(count * relative_cost(kind, self.device) for kind, count in counts.items())

    @property
    def _product_kernels(self) -> int:
        return PRODUCTS_PER_LAYER * self.model.layers + 1

    @property
    def _in_turn(self) -> bool:
        """A GPU multiplies while it reads; the cores of a processor do one after the other."""
        return self.device.kind == "cpu"

    def decode(self, how: How, batch: float, context: float) -> Quantity:
        """Seconds of a step of `batch` sequences that hold `context` tokens each.

        The formula's inputs are plain numbers: `.at(batch=…)` and `.function("batch", "context")` follow it.
        """
        formulas = {"bound": self._bound, "by_operation": self._by_operation, "predicted": self._predicted}
        formula, inputs = formulas[how]()
        name = "tpot" if how == "bound" else f"tpot_{how}"
        return quantity(name, "s", formula, **(inputs | {"batch": batch, "context": context}))

    def operations(self, batch: float, context: float) -> dict[str, Quantity]:
        """Seconds of what a predicted step does one after the other; they add up to it."""
        return {
            name: quantity(name, "s", formula, **(inputs | {"batch": batch, "context": context}))
            for name, (formula, inputs) in self._terms().items()
        }

    def curve(self, how: How = "predicted") -> Callable[[float, float], float]:
        """(batch, mean context) -> seconds of a step, fast."""
        return self.decode(how, 1, 1).function("batch", "context")

    def products(self, batch: float) -> Quantity:
        """Seconds of all products of a step at their peaks, memory left aside."""
        return quantity("gemm_time", "s", _PRODUCTS, batch=batch, **self._product_inputs())

    def products_bound(self, batch: float) -> Quantity:
        """Seconds of the products: their weights' bytes or their operations, unpacking left aside."""
        read, inputs = self._read()
        inputs |= self._product_inputs() | {"batch": batch, "bandwidth": self.device.bandwidth}
        return quantity("products_time", "s", f"max({read} / bandwidth, {_PRODUCTS})", **inputs)

    def prefill(self, tokens: float, cached: float = 0.0, efficiency: float | None = None) -> Quantity:
        """Seconds to compute `tokens` of a prompt behind `cached` others, attending causally.

        `efficiency` is the share of the peak that all of it reaches. None: as measured; where a GPU was, that
        is the share of products and attention, and to them come the bytes and kernels between them. Logits
        are of the last token only.
        """
        inputs = self._product_inputs() | {
            "layers": self.model.layers,
            "q_size": self.model.q_size / self.tp,
            "attention_peak": self._attention_peak(),
            "efficiency": self.reached.prefill if efficiency is None else efficiency,
            "weights": self._read()[1]["weights"] + self._read()[1].get("expert", 0.0),
            "bandwidth": self.device.bandwidth,
        }
        compute = (
            "(2 * tokens * linear / peak + 2 * head / head_peak"
            " + 4 * layers * q_size * tokens * (cached + (tokens + 1) / 2) / attention_peak) / efficiency"
        )
        formula = f"max({compute}, weights / bandwidth)"
        if self._in_turn:
            formula = f"{compute} + weights / bandwidth + kernels * kernel_seconds"
        elif efficiency is None and self.device.measured:
            fixed = f"kernels * kernel_seconds + products * {_FILLED.format('tokens')}"
            formula += f" + tokens * activations / bandwidth + {fixed}"
            inputs |= {"products": self._product_kernels, "filled": self._filled, "tile": TILE}
            inputs["activations"] = sum(o.bytes_per_token for o in self.between if o.kind != "ends")
        if "kernels" in formula:
            inputs |= {"kernels": self.kernels, "kernel_seconds": self.device.kernel_seconds}
        rest, more = self._rest("tokens")
        inputs |= more | {"tokens": tokens, "cached": cached}
        return quantity("prefill_time", "s", formula + rest, **inputs)

    def _bound(self) -> tuple[str, dict[str, float]]:
        read, inputs = self._read()
        rest, more = self._rest("batch")
        inputs |= self._product_inputs() | more
        inputs |= {"kv_per_token": self.kv_per_token, "bandwidth": self.device.bandwidth}
        memory = f"({read} + batch * context * kv_per_token) / bandwidth"
        return f"max({memory}, {_PRODUCTS}){rest}", inputs

    def _by_operation(self) -> tuple[str, dict[str, float]]:
        read, inputs = self._read()
        rest, more = self._rest("batch")
        inputs |= self._product_inputs() | self._attention_inputs() | more
        unpack = ", unpack" if self.hidden else ""
        inputs |= {"unpack": self.unpack} if self.hidden else {}
        products = f"max({read} / bandwidth, {_PRODUCTS}{unpack})"
        return f"{products} + {_ATTENTION}{rest}", inputs

    def _predicted(self) -> tuple[str, dict[str, float]]:
        terms, inputs = self._terms().values(), dict[str, float]()
        for _, more in terms:
            inputs |= more
        return " + ".join(formula for formula, _ in terms), inputs

    def _terms(self) -> dict[str, tuple[str, dict[str, float]]]:
        """Formula and inputs of each operation of a predicted step."""
        rest, more = self._rest("batch")
        terms = {"products": self._predicted_products()}
        attention = f"{_ATTENTION} / attention_reach + layers * attention_each"
        terms["attention"] = (
            attention,
            self._attention_inputs()
            | {
                "attention_reach": self.reached.attention,
                "attention_each": self._seconds_each("attention"),
            },
        )
        for o in self.between:
            formula = f"{o.name} * {o.name}_each + batch * {o.name}_bytes / bandwidth"
            terms[o.name] = (
                formula,
                {
                    o.name: o.kernels,
                    f"{o.name}_each": self._seconds_each(o.kind),
                    f"{o.name}_bytes": o.bytes_per_token,
                    "bandwidth": self.device.bandwidth,
                },
            )
        return terms | ({"rest": (rest.removeprefix(" + "), more)} if rest else {})

    def _predicted_products(self) -> tuple[str, dict[str, float]]:
        read, inputs = self._read()
        hidden = self.hidden and not self._in_turn  # processors unpack at the rate that was measured
        unpack = ", unpack" if hidden else ""
        inputs |= {"unpack": self.unpack} if hidden else {}
        inputs |= self._product_inputs() | {
            "bandwidth": self.device.bandwidth,
            "products_reach": self.reached.products,
            "compute_reach": self.reached.compute,
            "products": self._product_kernels,
            "products_each": self._seconds_each(f"product:{family_of(self.precision)}"),
        }
        memory, compute = f"{read} / (bandwidth * products_reach)", f"{_PRODUCTS} / compute_reach"
        if self._in_turn:
            return f"{memory} + {compute} + products * products_each", inputs
        inputs |= {"exposed": self.reached.exposed, "filled": self._filled, "tile": TILE}
        longer, shorter = f"max({memory}, {compute}{unpack})", f"min({memory}, {compute})"
        fixed = f"products * (products_each + {_FILLED.format('batch')})"
        return f"{longer} + exposed * {shorter} + {fixed}", inputs

    @property
    def _filled(self) -> float:
        """Seconds that each product takes longer for a tile of tokens than for few."""
        costs = kernel_costs().products[family_of(self.precision)]
        return costs.filled * self.device.kernel_seconds / KERNEL_SECONDS

    def _seconds_each(self, kind: str) -> float:
        return relative_cost(kind, self.device) * self.device.kernel_seconds

    def _read(self) -> tuple[str, dict[str, float]]:
        return read_formula(self.model, self.precision, self.tp)

    def _product_inputs(self) -> dict[str, float]:
        active = active_parameters(self.model)
        head = active.inputs["head"]
        return {
            "linear": (float(active) - head) / self.tp,
            "peak": self.device.peak(self.precision.compute),
            "head": head / self.tp,
            "head_peak": self.device.peak(self.precision.head_compute),
        }

    def _attention_inputs(self) -> dict[str, float]:
        return {
            "kv_per_token": self.kv_per_token,
            "bandwidth": self.device.bandwidth,
            "layers": self.model.layers,
            "q_size": self.model.q_size / self.tp,
            "attention_peak": self._attention_peak(),
        }

    def _attention_peak(self) -> float:
        return self.device.peak(self.precision.attention_compute)

    def _rest(self, tokens: str) -> tuple[str, dict[str, float]]:
        """What nothing hides: unpacking where it does not overlap, and all-reduces of `tokens` rows."""
        parts, inputs = "", dict[str, float]()
        if not self.hidden and self.unpack:
            parts, inputs = " + unpack", {"unpack": self.unpack}
        if self.tp > 1:
            parts += " + " + ALL_REDUCE.replace("tokens", tokens)
            inputs |= {"tp": self.tp, "hidden": self.model.hidden, "layers": self.model.layers}
            inputs |= {"latency": self.device.link_latency, "link": self.device.link}
        return parts, inputs


_FILLED: Final = "filled * min({0}, tile) / tile"
_PRODUCTS: Final = "2 * batch * (linear / peak + head / head_peak)"
_ATTENTION: Final = (
    "max(batch * context * kv_per_token / bandwidth, 4 * batch * context * layers * q_size / attention_peak)"
)
