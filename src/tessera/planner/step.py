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

from tessera.hardware import Device
from tessera.planner.board import SCHEMES, Scheme, scheme_time
from tessera.planner.memory import active_parameters, bytes_by_role, kv_bytes_per_token, read_formula
from tessera.planner.model_shape import ModelShape
from tessera.planner.parallel import ALL_REDUCE, check_groups, check_link, check_split, kv_share
from tessera.planner.precision import KvParams, Precision
from tessera.planner.quantity import Quantity, quantity

How = Literal["bound", "by_operation", "predicted"]

KERNELS_PER_LAYER: Final = 10
KERNELS_PER_STEP: Final = 10
"""Kernels of a decode step of this package's engine: in each layer, and around them."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of bandwidth and peak that kernels reach (notes/2026-11-30-planner.md).

    products   of the bandwidth, by linear layers bound by memory
    attention  of the bandwidth, by decode attention
    compute    of the peak, by linear layers bound by operations
    prefill    of the peak, by a whole prefill
    """

    products: float
    attention: float
    compute: float
    prefill: float


OF_MEASURED: Final = Efficiency(products=0.92, attention=0.93, compute=0.90, prefill=0.82)
"""Of what the best simple kernel reached on the same device: this package's engine on one H200."""

OF_DATA_SHEET: Final = Efficiency(products=0.86, attention=0.87, compute=0.70, prefill=0.50)
"""Of a data sheet's values: the same engine and card; for prefill the lecture's half."""


@dataclass(frozen=True)
class StepModel:
    """Costs of `model` stored by `precision` on `tp` devices; bytes and parameters are those of one device.

    dequant     how 4-bit weights are unpacked
    hidden      whether unpacking overlaps with memory traffic and products; otherwise it adds to them
    efficiency  for predictions; None: what was measured on an H200, of measured or data sheet values as the
                device has them

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
        return self.efficiency or (OF_MEASURED if self.device.measured else OF_DATA_SHEET)

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
    def activations(self) -> float:
        """Bytes that kernels between the products move for each token: two norms with their residuals,
        SiLU·mul, rotary embedding and append in each layer, 16-bit; 32-bit logits and their 16-bit copy.
        """
        model = self.model
        inner = 3 * model.intermediate * model.experts_per_token + 2 * (model.q_size + 2 * model.kv_size)
        return model.layers * 2 * (8 * model.hidden + inner / self.tp) + 6 * model.vocab / self.tp

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

    @property
    def kernels(self) -> int:
        """Kernels of a step."""
        return KERNELS_PER_LAYER * self.model.layers + KERNELS_PER_STEP

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

        `efficiency` is the share of the peak; None: as measured. Logits are of the last token only.
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
        read, inputs = self._read()
        rest, more = self._rest("batch")
        inputs |= self._product_inputs() | self._attention_inputs() | more
        hidden = self.hidden and not self._in_turn  # processors unpack at the rate that was measured
        unpack = ", unpack" if hidden else ""
        inputs |= {"unpack": self.unpack} if hidden else {}
        inputs |= {
            "products_reach": self.reached.products,
            "compute_reach": self.reached.compute,
            "attention_reach": self.reached.attention,
            "kernels": self.kernels,
            "kernel_seconds": self.device.kernel_seconds,
            "activations": self.activations,
        }
        memory, compute = f"{read} / (bandwidth * products_reach)", f"{_PRODUCTS} / compute_reach{unpack}"
        products = f"{memory} + {compute}" if self._in_turn else f"max({memory}, {compute})"
        fixed = "kernels * kernel_seconds + batch * activations / bandwidth"
        return f"{products} + {_ATTENTION} / attention_reach + {fixed}{rest}", inputs

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
        parts, inputs = "", {}
        if not self.hidden and self.unpack:
            parts, inputs = " + unpack", {"unpack": self.unpack}
        if self.tp > 1:
            parts += " + " + ALL_REDUCE.replace("tokens", tokens)
            inputs |= {"tp": self.tp, "hidden": self.model.hidden, "layers": self.model.layers}
            inputs |= {"latency": self.device.link_latency, "link": self.device.link}
        return parts, inputs


_PRODUCTS: Final = "2 * batch * (linear / peak + head / head_peak)"
_ATTENTION: Final = (
    "max(batch * context * kv_per_token / bandwidth, 4 * batch * context * layers * q_size / attention_peak)"
)
