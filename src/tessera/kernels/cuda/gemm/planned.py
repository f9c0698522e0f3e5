"""What linear layers of quantized weights share on CUDA: a variant for each number of tokens."""

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tessera.kernels.cuda.gemm.choose import bucket
from tessera.kernels.cuda.gemm.half_weights import HalfWeights
from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.cuda.gemm.weights import PackedWeights
from tessera.kernels.registry import runs

W = TypeVar("W", PackedWeights, HalfWeights)
C = TypeVar("C")


@dataclass(frozen=True, eq=False)
class PlannedLinear(Generic[W, C]):
    """`plan` has a choice for each of BUCKETS; `bias` [N] of `dtype` or None."""

    kernel_id: str
    weights: W
    bias: Tensor | None
    dtype: torch.dtype
    plan: tuple[C, ...]
    scratch: Scratch

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """What runs at each of BUCKETS, as `runs` counts it."""
        return tuple(f"{self.kernel_id}_{choice}" for choice in self.plan)

    def variant(self, tokens: int) -> str:
        """What runs for `tokens`."""
        return self.ids[bucket(tokens)]

    def counted(self, tokens: int) -> C:
        """The choice for `tokens`, which is about to run."""
        at = bucket(tokens)
        runs[self.ids[at]] += 1
        return self.plan[at]
