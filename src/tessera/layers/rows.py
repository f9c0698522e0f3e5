"""Row-wise layers bound to kernels: RMSNorm and SiLU times gate."""

from torch import Tensor

from tessera.kernels.ops import NORM, SILU_MUL, RowsProblem
from tessera.kernels.types import Activation
from tessera.layers.target import Target


class RMSNorm:
    """(x, residual) -> (RMSNorm(x + residual) * weight, x + residual); int8 rows first if `quantize`."""

    def __init__(self, target: Target, weight: Tensor, eps: float, *, quantize: bool) -> None:
        problem = RowsProblem(target.device, weight.shape[0], target.dtype, quantize)
        kernel = NORM.select(problem)
        self._bound = kernel.bind(problem, weight, eps)
        self.nbytes = weight.nbytes
        self.kernel_ids = (kernel.id,)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]:
        return self._bound(x, residual)


class SiluMul:
    """gate_up [T, 2 I] -> silu(gate) * up [T, I], as int8 rows if `quantize`."""

    nbytes = 0

    def __init__(self, target: Target, width: int, *, quantize: bool) -> None:
        problem = RowsProblem(target.device, width, target.dtype, quantize)
        kernel = SILU_MUL.select(problem)
        self._bound = kernel.bind(problem)
        self.kernel_ids = (kernel.id,)

    def __call__(self, gate_up: Tensor) -> Activation:
        return self._bound(gate_up)
