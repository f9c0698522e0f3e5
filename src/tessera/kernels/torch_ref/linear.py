"""Linear layers in torch: exact integers for int8 activations, dequantized weights for float ones."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import YES, Verdict, no, runs
from tessera.kernels.types import Activation, QuantizedRows
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor
from tessera.spec import A8, Chain, Float, Grid, Pattern, Qtile

MAX_K: Final = 131_072
"""int32 holds a sum of this many products of magnitude at most 128 * 127."""

EXACT_K: Final = 1024
"""fp32 holds a sum of this many products of magnitude at most 128 * 127 exactly (below 2^24)."""


class TorchIntLinear:
    """int8 activations times weights whose chain is integers up to a last per-channel float step."""

    id = "torch_int_linear"

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        if problem.device.kind != "cpu":
            return no("runs on the CPU only")
        if spec.activation != A8:
            return no(f"activations are {spec.activation}, not int8 per token")
        if spec.transforms:
            return no("run-time input transforms are not implemented")
        if spec.in_features > MAX_K:
            return no(f"K = {spec.in_features} overflows int32 sums (at most {MAX_K})")
        if not _is_integer_then_channel(spec.weight):
            return no(f"{spec.weight} is not integer codes and one float step per channel")
        return YES

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> "BoundTorchIntLinear":
        return BoundTorchIntLinear(problem, weight, bias)


def _is_integer_then_channel(chain: Chain) -> bool:
    if not chain.steps or not isinstance(chain.codes, Grid):
        return False
    *inner, last = chain.steps
    integer = all(isinstance(step.out, Grid) for step in inner)
    return integer and last.op in ("scale", "affine_zero") and last.pattern == Pattern.channel()


def integer_weight(weight: QTensor) -> tuple[Tensor, Tensor]:
    """(int8 [N, K], float32 scale [N]) of a chain of integer steps and one float step per channel."""
    *inner, last = weight.chain.steps
    names = [p.name for step in inner for p in step.params]
    tile = Qtile(weight.shape, Chain(weight.chain.codes, tuple(inner)))
    values = QTensor(tile, weight.codes, {n: weight.params[n] for n in names}).dequantize(torch.int32)
    if last.op == "affine_zero":
        values = values - weight.params[last.params[1].name].dequantize(torch.int32)
    return values.to(torch.int8), weight.params[last.params[0].name].dequantize().flatten()


def integer_matmul(x: Tensor, w: Tensor) -> Tensor:
    """Exact x [T, K] times w [N, K] transposed, both int8, as int32 [T, N].

    In fp32 over slices of K short enough for every partial sum to be a whole number below 2^24.
    """
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.int32)
    for start in range(0, x.shape[1], EXACT_K):
        part = slice(start, start + EXACT_K)
        total += F.linear(x[:, part].float(), w[:, part].float()).to(torch.int32)
    return total


class BoundTorchIntLinear:
    """y = (float(acc) * x_scale) * w_scale + bias, each operation rounded to fp32, of the exact int32 sum."""

    kernel_id = TorchIntLinear.id

    def __init__(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> None:
        self._codes, self._scale = integer_weight(weight)
        self._bias = None if bias is None else bias.float()
        self._dtype = FLOAT_DTYPES[problem.spec.output.name]

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Activation) -> Tensor:
        if not isinstance(x, QuantizedRows):
            raise KernelArgumentError(f"{self.kernel_id}: x is a float tensor, wanted QuantizedRows")
        runs[self.kernel_id] += 1
        y = integer_matmul(x.codes, self._codes).float() * x.scale.unsqueeze(-1) * self._scale
        return (y if self._bias is None else y + self._bias).to(self._dtype)


class TorchFloatLinear:
    """Float activations times any weight chain, dequantized to fp32 when bound."""

    id = "torch_float_linear"

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        if problem.device.kind != "cpu":
            return no("runs on the CPU only")
        if not isinstance(spec.activation.codes, Float) or spec.activation.steps:
            return no(f"activations are {spec.activation}, not floats")
        if spec.transforms:
            return no("run-time input transforms are not implemented")
        return YES

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> "BoundTorchFloatLinear":
        return BoundTorchFloatLinear(problem, weight, bias)


class BoundTorchFloatLinear:
    """F.linear in fp32."""

    kernel_id = TorchFloatLinear.id

    def __init__(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> None:
        self._weight = weight.dequantize(torch.float32)
        self._bias = None if bias is None else bias.float()
        self._dtype = FLOAT_DTYPES[problem.spec.output.name]

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Activation) -> Tensor:
        if not isinstance(x, Tensor):
            raise KernelArgumentError(f"{self.kernel_id}: x is QuantizedRows, wanted a float tensor")
        runs[self.kernel_id] += 1
        return F.linear(x.float(), self._weight, self._bias).to(self._dtype)
