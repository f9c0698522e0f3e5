"""Compiled linear layers over float32 activations: 4-bit groups, 8-bit channels, plain f32, f16, bf16."""

import ctypes
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import check_rows, pad_vector
from tessera.kernels.cpu.kernel import CpuKernel
from tessera.kernels.cpu.layouts import FORMATS, LANES, Packed, format_of, packed
from tessera.kernels.cpu.library import LONG_ROWS, require
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import Activation
from tessera.numerics import QTensor
from tessera.spec import F32, Chain, Float, group_of

_PLAIN: Final = {"f32": 0, "f16": 1, "bf16": 2}
_KINDS: Final = {"w8": 3, "w4_zero": 4, "w4_zero_channel": 4, "w4_min": 5}
_NAMES: Final = {
    "w8": "w8a16_linear",
    "w4_zero": "w4a16_linear",
    "w4_zero_channel": "w4a16_channel_linear",
    "w4_min": "w4a16_min_linear",
    "floats": "float_linear",
}
_STEP: Final = {"n16k8": 8, "n16k4": 4, "n16": 1}
"""k that one row of a layout holds."""


class FloatLinearDescriptor(ctypes.Structure):
    """`FloatLinear` of csrc/cpu/linear_float.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "n", "k", "k_padded", "group", "groups")),
        *((name, ctypes.c_void_p) for name in ("codes", "group_scale", "group_offset", "scale", "bias")),
    )


def describe(weight: Packed, scale: Tensor | None, bias: Tensor | None) -> FloatLinearDescriptor:
    """Pointers into `weight`, `scale` and `bias`, which the caller keeps alive."""
    chain = weight.tile.chain
    name = format_of(chain)
    assert name is not None
    params = weight.params
    four_bit = name.startswith("w4")
    k_padded = weight.codes.shape[1] * _STEP[FORMATS[name][0].id]
    group = group_of(chain) or k_padded
    tensors = {
        "codes": weight.codes,
        "group_scale": params["scale"] if four_bit else None,
        "group_offset": params.get("zero", params.get("min")) if four_bit else None,
        "scale": scale,
        "bias": bias,
    }
    return FloatLinearDescriptor(
        kind=_PLAIN[str(chain.codes)] if name == "floats" else _KINDS[name],
        n=weight.tile.shape[0],
        k=weight.tile.shape[1],
        k_padded=k_padded,
        group=group,
        groups=-(-k_padded // group),
        **{name: None if t is None else t.data_ptr() for name, t in tensors.items()},
    )


def channel_scale(weight: Packed) -> Tensor | None:
    """float32 [blocks * 16] of 8-bit weights; other formats have none."""
    return pad_vector(weight.params["scale"].float(), LANES) if format_of(weight.tile.chain) == "w8" else None


class FloatLinearKernel(CpuKernel):
    """Every output is one chain of fused multiply-adds over k in order, whatever the number of rows."""

    def __init__(self, arch: str, weight_format: str) -> None:
        super().__init__(arch, _NAMES[weight_format], str(FORMATS[weight_format][0]))
        self.format = weight_format

    def can_implement(self, problem: LinearProblem) -> Verdict:
        spec = problem.spec
        if not _is_float(spec.activation):
            return no(f"activations are {spec.activation}, not floats")
        if format_of(spec.weight) != self.format:
            return no(f"weights are {spec.weight}, not {self.format}")
        if spec.output != F32 or spec.transforms:
            return no("puts out float32 and transforms no input")
        return self.runs_on(problem.device)

    def bind(self, problem: LinearProblem, weight: QTensor, bias: Tensor | None) -> "BoundFloatLinear":
        return BoundFloatLinear(self, packed(weight), bias)


def _is_float(chain: Chain) -> bool:
    return chain.is_plain and isinstance(chain.codes, Float)


class BoundFloatLinear:
    def __init__(self, kernel: FloatLinearKernel, weight: Packed, bias: Tensor | None) -> None:
        self.kernel_id = kernel.id
        self.packed = weight
        self._n, self._k = weight.tile.shape
        self._scale = channel_scale(weight)
        self._bias = None if bias is None else pad_vector(bias.float(), LANES)
        self._library = require(kernel.arch)
        self._descriptor = describe(weight, self._scale, self._bias)
        self._address = ctypes.addressof(self._descriptor)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def __call__(self, x: Activation) -> Tensor:
        if not isinstance(x, Tensor):
            raise KernelArgumentError(f"{self.kernel_id}: x is QuantizedRows, wanted a float tensor")
        rows = check_rows(self.kernel_id, "x", x, self._k)
        y = torch.empty(rows, self._n)
        run = self._library.short if rows < LONG_ROWS else self._library.long
        run.float_linear(self._address, x.data_ptr(), rows, y.data_ptr())
        runs[self.kernel_id] += 1
        return y
