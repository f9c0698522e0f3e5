"""Row-wise ops in torch: RMSNorm, SiLU times gate, int8 quantization."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.ops import RowsProblem
from tessera.kernels.registry import YES, Verdict, no, runs
from tessera.kernels.types import Activation, QuantizedRows
from tessera.numerics import quantize_rows


def to_rows(x: Tensor) -> QuantizedRows:
    """int8 rows as `numerics.quantize_rows` defines them."""
    return QuantizedRows(*quantize_rows(x))


def _on_cpu(problem: RowsProblem) -> Verdict:
    if not problem.dtype.is_floating_point:
        return no(f"hidden states are {problem.dtype}, not floats")
    return YES if problem.device.kind == "cpu" else no("runs on the CPU only")


@dataclass(frozen=True, slots=True)
class _BoundNorm:
    problem: RowsProblem
    weight: Tensor
    eps: float

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]:
        runs[TorchNorm.id] += 1
        total = x if residual is None else x + residual
        wide = total.float()
        y = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight
        return to_rows(y) if self.problem.quantize else y.to(self.problem.dtype), total


class TorchNorm:
    """RMSNorm (Zhang and Sennrich 2019) in fp32, weight applied in fp32."""

    id = "torch_rms_norm"

    def can_implement(self, problem: RowsProblem) -> Verdict:
        return _on_cpu(problem)

    def bind(self, problem: RowsProblem, weight: Tensor, eps: float) -> _BoundNorm:
        return _BoundNorm(problem, weight.float(), eps)


@dataclass(frozen=True, slots=True)
class _BoundSiluMul:
    problem: RowsProblem

    def __call__(self, gate_up: Tensor) -> Activation:
        runs[TorchSiluMul.id] += 1
        gate, up = gate_up.float().chunk(2, dim=-1)
        y = F.silu(gate) * up
        return to_rows(y) if self.problem.quantize else y.to(self.problem.dtype)


class TorchSiluMul:
    """silu(gate) * up in fp32."""

    id = "torch_silu_mul"

    def can_implement(self, problem: RowsProblem) -> Verdict:
        return _on_cpu(problem)

    def bind(self, problem: RowsProblem) -> _BoundSiluMul:
        return _BoundSiluMul(problem)


class _BoundQuantizeRows:
    def __call__(self, x: Tensor) -> QuantizedRows:
        runs[TorchQuantizeRows.id] += 1
        return to_rows(x)


class TorchQuantizeRows:
    """`numerics.quantize_rows`."""

    id = "torch_quantize_rows"

    def can_implement(self, problem: RowsProblem) -> Verdict:
        return _on_cpu(problem)

    def bind(self, problem: RowsProblem) -> _BoundQuantizeRows:
        return _BoundQuantizeRows()
