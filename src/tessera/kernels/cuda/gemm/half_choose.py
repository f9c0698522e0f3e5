"""Which instance runs how many tokens of int4 weights and 16-bit activations: measured, or of least cost."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.gemm import half_small, half_wide, small
from tessera.kernels.cuda.gemm.choose import BUCKETS
from tessera.kernels.cuda.gemm.half_measured import MEASURED
from tessera.kernels.cuda.gemm.half_weights import COLUMNS, HalfWeights
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.launch import Kernel


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant of half_small.py or half_wide.py."""

    variant: half_wide.Variant | small.Variant

    def __str__(self) -> str:
        return str(self.variant)

    def instance(self, dtype: torch.dtype, group: int) -> Kernel:
        if isinstance(self.variant, half_wide.Variant):
            return half_wide.instance(self.variant, dtype, group)
        return half_small.instance(self.variant, dtype, group)

    def launch(
        self, weights: HalfWeights, x: Tensor, y: Tensor, bias: Tensor | None, scratch: Scratch
    ) -> None:
        """y = x W^T + bias; see the `launch` of the variant's module."""
        if isinstance(self.variant, half_wide.Variant):
            half_wide.launch(self.variant, weights, x, y, bias, scratch)
        else:
            half_small.launch(self.variant, weights, x, y, bias, scratch)


WIDE: Final = tuple(Choice(variant) for variant in half_wide.VARIANTS)
SMALL: Final = tuple(Choice(variant) for variant in half_small.VARIANTS)
ANYWHERE: Final = tuple(Choice(variant) for variant in half_small.ANYWHERE)
_GROUP: Final = 128
"""What costs of few tokens are computed for."""


def cost_us(choice: Choice, n: int, k: int, tokens: int, info: DeviceInfo) -> float:
    """Of the busiest SM, and what a launch costs besides."""
    variant, sms = choice.variant, info.sms
    if isinstance(variant, half_wide.Variant):
        return half_wide.plan(variant, n, k, tokens, sms).clocks / (0.9 * info.clock_mhz)
    steps, form = -(-k // COLUMNS), half_small.Form(_GROUP)
    blocks = small.grid(n, k, tokens, sms, variant, form)
    units = -(-tokens // variant.tokens) * -(-n // variant.rows) * steps
    return 1.5 + small.clocks(units, steps, blocks, sms, variant, form) / info.clock_mhz


def choose(n: int, k: int, tokens: int, info: DeviceInfo) -> Choice:
    """The cheapest variant for one product; measured where the shape was measured on such a device."""
    able = ANYWHERE if info.sm < 90 else (*SMALL, *WIDE)
    name = MEASURED.get(info.name, {}).get((n, k), {}).get(tokens)
    for choice in able:
        if str(choice) == name:
            return choice
    return min(able, key=lambda choice: cost_us(choice, n, k, tokens, info))


@cache
def plan(n: int, k: int, info: DeviceInfo) -> tuple[Choice, ...]:
    """A choice for each of BUCKETS."""
    return tuple(choose(n, k, tokens, info) for tokens in BUCKETS)
