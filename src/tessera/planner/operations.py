"""What a decode step consists of beside products: kernels by kind, and the bytes they move for each token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tessera.planner.model_shape import ModelShape
from tessera.planner.precision import Precision

PRODUCTS_PER_LAYER: Final = 4
"""Of qkv, o, gate and up, down; a step has one more, the output layer's."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`kernels` launches of one kind in a step; `bytes_per_token` of activations over all of them.

    kind  of `hardware.KINDS`: what one costs
    """

    name: str
    kind: str
    kernels: int
    bytes_per_token: float


def between_products(model: ModelShape, precision: Precision, tp: int = 1) -> Iterator[Operation]:
    """The operations of this package's engine in the order of a layer; activations are 16-bit.

    A norm reads a product's output and reads and writes the residual; what feeds an integer product writes
    codes of one byte.
    """
    layers, integer = model.layers, precision.activation_bits == 8 and precision.compute == "int8"
    suffix, code = ("_int8", 1) if integer else ("", 2)
    inner = model.intermediate * model.experts_per_token / tp
    yield Operation("norms", f"norm{suffix}", 2 * layers + 1, 2 * layers * (6 + code) * model.hidden)
    rotated = layers * 2 * 2 * (model.q_size + 2 * model.kv_size) / tp
    yield Operation("rotary", "rotary", layers, rotated)
    if integer:
        yield Operation("int8_rows", "rows_int8", layers, layers * 3 * model.q_size / tp)
    yield Operation("activation", f"activation{suffix}", layers, layers * (4 + code) * inner)
    # 16-bit logits are made 32-bit ones, which the sampler reads.
    yield Operation("ends", "ends", 1, (2 + 4 + 4) * model.vocab / tp)


def family_of(precision: Precision) -> str:
    """Which of `hardware.FAMILIES` multiplies."""
    if precision.compute == "int8":
        return "int8"
    return "mixed" if precision.needs_dequantization else "library"
