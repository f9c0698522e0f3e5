"""Compiled linear layers over int8 activations: W4A8 by groups (QoQ) and by channels, W8A8."""

import ctypes
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import pad_vector
from tessera.kernels.cpu.int8_rows import addresses_of
from tessera.kernels.cpu.kernel import CpuKernel
from tessera.kernels.cpu.layouts import FORMATS, LANES, Packed, format_of, packed
from tessera.kernels.cpu.library import LONG_ROWS, require
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.torch_ref.linear import MAX_K
from tessera.kernels.types import Activation
from tessera.numerics import QTensor
from tessera.spec import A8, F32, group_of

MAX_GROUP: Final = 256
"""A group's sum of activations has to fit int16."""

_KINDS: Final = {"w8": 0, "w4_progressive": 1, "w4_zero_channel": 2}
_NAMES: Final = {"w8": "w8a8_linear", "w4_progressive": "w4a8_group_linear", "w4_zero_channel": "w4a8_linear"}


class IntLinearDescriptor(ctypes.Structure):
    """`IntLinear` of csrc/cpu/linear_int.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "n", "k", "k_padded", "group", "groups")),
        *((name, ctypes.c_void_p) for name in ("codes", "group_scale", "group_zero", "scale", "bias")),
    )


class IntLinearKernel(CpuKernel):
    """Exact int32 sums, then (float(sum) * x_scale) * w_scale + bias, each operation rounded to float32.

    Bit-equal to `torch_ref.TorchIntLinear`, for any number of rows and threads.
    """

    def __init__(self, arch: str, weight_format: str) -> None:
        super().__init__(arch, _NAMES[weight_format], str(FORMATS[weight_format][0]))
        self.format = weight_format

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        if spec.activation != A8:
            return no(f"activations are {spec.activation}, not int8 per token")
        if format_of(spec.weight) != self.format:
            return no(f"weights are {spec.weight}, not {self.format}")
        if spec.output != F32 or spec.transforms:
            return no("puts out float32 and transforms no input")
        if spec.in_features > MAX_K:
            return no(f"K = {spec.in_features} overflows int32 sums (at most {MAX_K})")
        if (group := group_of(spec.weight) or 0) > MAX_GROUP:
            return no(f"groups of {group} overflow int16 sums of activations (at most {MAX_GROUP})")
        return self.runs_on(problem.device)

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> "BoundIntLinear":
        return BoundIntLinear(self, packed(weight), bias)


class BoundIntLinear:
    def __init__(self, kernel: IntLinearKernel, weight: Packed, bias: Tensor | None) -> None:
        self.kernel_id = kernel.id
        self.packed = weight
        self._n, self._k = weight.tile.shape
        self._scale = pad_vector(weight.params["scale"].float(), LANES)
        self._bias = None if bias is None else pad_vector(bias.float(), LANES)
        self._library = require(kernel.arch)
        self._descriptor = self._describe(kernel.format)
        self._address = ctypes.addressof(self._descriptor)

    def _describe(self, weight_format: str) -> IntLinearDescriptor:
        tensors: dict[str, Tensor | None] = {
            "codes": self.packed.codes,
            "group_scale": self.packed.params.get("group_scale"),
            "group_zero": self.packed.params.get("group_zero", self.packed.params.get("zero")),
            "scale": self._scale,
            "bias": self._bias,
        }
        per_chunk = 4 if weight_format == "w8" else 8
        k_padded = self.packed.codes.shape[1] * per_chunk
        group = group_of(self.packed.tile.chain) or k_padded
        return IntLinearDescriptor(
            kind=_KINDS[weight_format],
            n=self._n,
            k=self._k,
            k_padded=k_padded,
            group=group,
            groups=-(-k_padded // group),
            **{name: None if t is None else t.data_ptr() for name, t in tensors.items()},
        )

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self._scale.nbytes

    def __call__(self, x: Activation) -> Tensor:
        rows, (codes, scale, row_sum) = addresses_of(self.kernel_id, x, self._k)
        y = torch.empty(rows, self._n)
        run = self._library.short if rows < LONG_ROWS else self._library.long
        run.int_linear(self._address, codes, scale, row_sum, rows, y.data_ptr())
        runs[self.kernel_id] += 1
        return y
