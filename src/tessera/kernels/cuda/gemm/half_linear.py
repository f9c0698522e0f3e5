"""Linear layers of 16-bit activations and 4-bit weights on CUDA: one launch, by the number of tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.kernels.cuda import device
from tessera.kernels.cuda.arguments import SHORT_NAMES, announce, check_rows, runs_on, upload
from tessera.kernels.cuda.gemm import half
from tessera.kernels.cuda.gemm.half_choose import Choice, plan
from tessera.kernels.cuda.gemm.half_weights import HalfWeights, pack, takes
from tessera.kernels.cuda.gemm.planned import PlannedLinear
from tessera.kernels.cuda.gemm.scratch import scratch
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Verdict, no
from tessera.kernels.types import Activation
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor


class BoundHalfLinear(PlannedLinear[HalfWeights, Choice]):
    """16-bit rows times packed weights."""

    def __call__(self, x: Activation) -> Tensor:
        """Raises KernelArgumentError."""
        n, k = self.weights.tile.shape
        if not isinstance(x, Tensor):
            raise KernelArgumentError(f"{self.kernel_id}: x holds int8 rows; this layer takes floats")
        check_rows(self.kernel_id, "x", x, k, self.dtype)
        tokens = x.shape[0]
        y = torch.empty((tokens, n), dtype=self.dtype, device=x.device)
        if tokens:
            self.counted(tokens).launch(self.weights, x, y, self.bias, self.scratch)
        return y


@dataclass(frozen=True)
class CudaHalfLinear:
    """y = x W^T + b, sums in fp32; weights are rounded once, or not at all, on the way to tensor cores."""

    family: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_int4"

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        verdict = runs_on(self.family, self.dtype, problem.device, FLOAT_DTYPES[spec.output.name])
        if not verdict.ok:
            return verdict
        if not spec.activation.is_plain:
            return no(f"takes float activations, not {spec.activation}")
        if reason := takes(spec.weight):
            return no(reason)
        if spec.transforms:
            return no("run-time input transforms are not implemented")
        if spec.in_features % half.ALIGNMENT:
            return no(f"K = {spec.in_features} is not a multiple of {half.ALIGNMENT}")
        return verdict

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> BoundHalfLinear:
        info = device.current()
        packed = pack(weight.to("cuda"))
        choices = plan(*packed.tile.shape, info)
        announce(*{choice.instance(self.dtype, packed.group) for choice in choices})
        held = None if bias is None else upload(bias, self.dtype)
        name = f"{self.id}_{f'g{packed.group}' if packed.group else 'chn'}"
        return BoundHalfLinear(name, packed, held, self.dtype, choices, scratch(info.index))
