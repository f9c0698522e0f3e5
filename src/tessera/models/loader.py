"""A checkpoint's weights on a device: kernels selected, weights packed, ready to run."""

from typing import Final

import torch

from tessera.kernels.registry import Device, device_at_hand
from tessera.layers.bound import KernelLayers
from tessera.layers.reference import ReferenceLayers
from tessera.layers.target import Target
from tessera.layers.types import Layers, Weights
from tessera.models.errors import UnknownDeviceError
from tessera.models.registry import model_class
from tessera.models.types import Model
from tessera.spec import Chain

HIDDEN_DTYPES: Final = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""Kinds of devices that have kernels, and the type of hidden states there."""


def build_model(
    checkpoint: Weights,
    device: Device | str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    paged: bool = True,
    kv: Chain | None = None,
) -> Model:
    """The checkpoint's model on `device` ("cpu", "cuda", or a Device that limits the instruction set).

    With `paged` every layer is bound to the kernel that its format selects. Without, it is the reference:
    plain torch, dense causal attention over the step's whole sequences, in float32 unless `dtype` is given.
    `kv`: format of K and V in the cache, instead of the checkpoint's own.
    Raises NoModelError, UnknownDeviceError, NoKernelError.
    """
    make = model_class(checkpoint.config.architecture)
    return make((_kernel_layers if paged else _reference)(checkpoint, device, dtype, kv))


def _reference(
    checkpoint: Weights, device: Device | str, dtype: torch.dtype | None, kv: Chain | None
) -> Layers:
    kind = device if isinstance(device, str) else device.kind
    return ReferenceLayers(checkpoint, dtype or torch.float32, kind, kv)


def _kernel_layers(
    checkpoint: Weights, device: Device | str, dtype: torch.dtype | None, kv: Chain | None
) -> Layers:
    kind = device if isinstance(device, str) else device.kind
    if kind not in HIDDEN_DTYPES:
        raise UnknownDeviceError(f"no kernels for device {kind!r}; known are {', '.join(HIDDEN_DTYPES)}")
    here = device_at_hand(kind)
    target = here if isinstance(device, str) else device
    return KernelLayers(checkpoint, Target(target, dtype or HIDDEN_DTYPES[kind]), kv)
