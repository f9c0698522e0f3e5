"""Linear layers of int8 activations and 4- or 8-bit weights on CUDA: one launch, by the number of tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.kernels.cuda import device
from tessera.kernels.cuda.arguments import SHORT_NAMES, announce, runs_on, upload
from tessera.kernels.cuda.gemm import choose
from tessera.kernels.cuda.gemm.choose import Choice
from tessera.kernels.cuda.gemm.planned import PlannedLinear
from tessera.kernels.cuda.gemm.scratch import scratch
from tessera.kernels.cuda.gemm.weights import PackedWeights, layout_of, pack
from tessera.kernels.cuda.gemm.wide import MAX_COLUMNS
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Verdict, no
from tessera.kernels.types import Activation, TiledRows
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor
from tessera.spec import A8


class BoundInt8Linear(PlannedLinear[PackedWeights, Choice]):
    """int8 rows in tiles times packed weights."""

    def __call__(self, x: Activation) -> Tensor:
        """Raises KernelArgumentError."""
        if not isinstance(x, TiledRows):
            raise KernelArgumentError(f"{self.kernel_id}: x is {type(x).__name__}, wanted TiledRows")
        tokens = x.shape[0]
        y = torch.empty((tokens, self.weights.tile.shape[0]), dtype=self.dtype, device=x.codes.device)
        if tokens:
            choice = self.counted(tokens)
            choice.family.launch(choice.variant, self.weights, x, y, self.bias, self.scratch)
        return y


@dataclass(frozen=True)
class CudaInt8Linear:
    """y = x W^T + b with exact int32 sums, scales and offsets applied to them in fp32."""

    family: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_int8"

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        verdict = runs_on(self.family, self.dtype, problem.device, FLOAT_DTYPES[spec.output.name])
        if not verdict.ok:
            return verdict
        if spec.activation != A8:
            return no(f"activations are {spec.activation}, not int8 per token")
        if layout_of(spec.weight) is None:
            return no(
                f"weights are {spec.weight}; taken are 4 bits in two levels with groups of 32, 64 or 128, "
                "and 4 or 8 bits with a scale a row"
            )
        if spec.transforms:
            return no("run-time input transforms are not implemented")
        if spec.in_features > MAX_COLUMNS:
            return no(f"K = {spec.in_features} overflows int32 sums (at most {MAX_COLUMNS})")
        return verdict

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> BoundInt8Linear:
        packed = pack(weight)
        info = device.current()
        n, k = packed.tile.shape
        plan = choose.plan(packed.form, n, k, problem.device.arch, choose.machine(info))
        announce(*{c.family.instance(c.variant, packed.form, self.dtype) for c in plan})
        held = None if bias is None else upload(bias, self.dtype)
        return BoundInt8Linear(
            f"{self.id}_{packed.form}", packed, held, self.dtype, plan, scratch(info.index)
        )
