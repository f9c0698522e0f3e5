"""What the launchers of this package check and share."""

from typing import Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tessera.kernels.cuda.device import FAMILIES
from tessera.kernels.cuda.launch import Kernel, prepare
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import YES, Device, Verdict, no

CPP_TYPES: Final = {torch.bfloat16: "tessera::bf16", torch.float16: "tessera::f16"}
SHORT_NAMES: Final = {torch.bfloat16: "bf16", torch.float16: "f16"}
VEC: Final = 8
"""Elements of 16 bits in one 16-byte access: widths are multiples of it."""


def runs_on(family: str, dtype: torch.dtype, device: Device, wanted: torch.dtype) -> Verdict:
    """Whether kernels of `family` that compute in `dtype` serve `device` with hidden states `wanted`."""
    if device.kind != "cuda":
        return no("runs on CUDA devices only")
    if device.arch not in FAMILIES[family]:
        return no(f"is for {', '.join(FAMILIES[family])}, not {device.arch}")
    return YES if wanted == dtype else no(f"computes in {SHORT_NAMES[dtype]}, not {wanted}")


def check_rows(
    kernel_id: str, name: str, x: Tensor, width: int, dtype: torch.dtype, rows: int | None = None
) -> None:
    """Raises KernelArgumentError unless `x` is contiguous, aligned [T, width] of `dtype` on CUDA.

    T is `rows` where that is given.
    """
    if not (
        x.ndim == 2
        and x.shape[1] == width
        and (rows is None or x.shape[0] == rows)
        and x.dtype == dtype
        and x.is_cuda
        and x.is_contiguous()
        and x.data_ptr() % 16 == 0
    ):
        count = "T" if rows is None else rows
        raise KernelArgumentError(
            f"{kernel_id}: {name} must be contiguous {dtype} [{count}, {width}] on a CUDA device, 16-byte "
            "aligned; "
            f"got {x.dtype} {tuple(x.shape)} on {x.device}, strides {x.stride()}, address {x.data_ptr():#x}"
        )


_announced: Final[set[Kernel]] = set()


def announce(*kernels: Kernel) -> None:
    """Kernels that something just bound will launch."""
    _announced.update(kernels)


def prepare_announced() -> int:
    """Compiles in parallel and loads what was announced since the last call; how many kernels that were.

    Raises what compiling raises.
    """
    kernels = set(_announced)
    _announced.clear()
    prepare(kernels)
    return len(kernels)


_uploaded: Final = WeakTensorKeyDictionary()


def upload(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` contiguous on the current CUDA device as `dtype`.

    One that is asked for twice (tied embeddings, rotary tables) is held once, as long as the original lives.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    held: Tensor | None = _uploaded.get(tensor)  # type: ignore[no-untyped-call]
    if held is None or held.device != device or held.dtype != dtype:
        held = tensor.to(device=device, dtype=dtype).contiguous()
        if held is not tensor:
            _uploaded[tensor] = held
    return held
