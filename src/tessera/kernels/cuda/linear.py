"""Linear layers with 16-bit weights and activations: cuBLAS through torch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.cuda.arguments import SHORT_NAMES, check_rows, runs_on, upload
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import Activation
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor


@dataclass(frozen=True, eq=False)
class BoundLinear:
    """`weight` [N, K] and `bias` [N] or None, of one 16-bit type on the device."""

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
        check_rows(self.kernel_id, "x", x, self.weight.shape[1], self.weight.dtype)
        runs[self.kernel_id] += 1
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class CudaLinear:
    """y = x W^T + b, sums in fp32."""

    family: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_cublas"

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
        return BoundLinear(self.id, upload(weight.codes, self.dtype), held)
