"""Where a model runs."""

from dataclasses import dataclass

import torch

from tessera.kernels.registry import Device
from tessera.numerics.qtensor import FLOAT_DTYPES
from tessera.spec import Float


@dataclass(frozen=True, slots=True)
class Target:
    """Kernels are chosen for `device`; hidden states between them are `dtype`."""

    device: Device
    dtype: torch.dtype

    @property
    def float_type(self) -> Float:
        return next(Float(name) for name, dtype in FLOAT_DTYPES.items() if dtype == self.dtype)
