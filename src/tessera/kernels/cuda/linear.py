"""Linear layers with 16-bit weights and activations: our own kernel for a few rows, cuBLAS above.

Template: csrc/cuda/linear/skinny.cuh.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.cuda.arguments import CPP_TYPES, SHORT_NAMES, announce, check_rows, runs_on, upload
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import Activation
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor

SKINNY_ROWS: Final = 16
"""Rows of x up to which reading the weights is all there is to do."""

STEP: Final = 32
"""The skinny kernel takes K in steps of this many elements."""

WARPS: Final = 8
TILE: Final = 16  # rows of weights a block


def skinny_kernel(dtype: torch.dtype, rows: int) -> Kernel:
    name = f"tessera::skinny_linear<tessera::Skinny<{CPP_TYPES[dtype]}, {-(-rows // 8)}, {WARPS}>>"
    return kernel("linear/skinny.cuh", name, signature="PPPPiii")


@dataclass(frozen=True, eq=False)
class BoundLinear:
    """`weight` [N, K] and `bias` [N] or None, of one 16-bit type on the device.

    Counted in `runs` as its id followed by `_skinny` or `_cublas`, whichever ran.
    """

    kernel_id: str
    weight: Tensor
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Activation) -> Tensor:
        """Raises KernelArgumentError."""
        if not isinstance(x, Tensor):
            raise KernelArgumentError(f"{self.kernel_id}: x holds int8 rows; this layer takes floats")
        n, k = self.weight.shape
        check_rows(self.kernel_id, "x", x, k, self.weight.dtype)
        if not 0 < len(x) <= SKINNY_ROWS or k % STEP:
            runs[f"{self.kernel_id}_cublas"] += 1
            return F.linear(x, self.weight, self.bias)
        runs[f"{self.kernel_id}_skinny"] += 1
        y = torch.empty((len(x), n), dtype=x.dtype, device=x.device)
        launch = skinny_kernel(x.dtype, len(x))
        bias = 0 if self.bias is None else self.bias
        launch(-(-n // TILE), WARPS * 32, x, self.weight, bias, y, len(x), n, k, pdl=True)
        return y


@dataclass(frozen=True)
class CudaLinear:
    """y = x W^T + b, sums in fp32."""

    family: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_linear"

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        verdict = runs_on(self.family, self.dtype, problem.device, FLOAT_DTYPES[spec.output.name])
        if not verdict.ok:
            return verdict
        if not (spec.weight.is_plain and spec.activation.is_plain):
            return no(f"takes plain floats, not weights {spec.weight} and activations {spec.activation}")
        if spec.transforms:
            return no("run-time input transforms are not implemented")
        return verdict

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> BoundLinear:
        held = None if bias is None else upload(bias, self.dtype)
        announce(*(skinny_kernel(self.dtype, rows) for rows in (1, SKINNY_ROWS)))
        return BoundLinear(self.id, upload(weight.codes, self.dtype), held)
