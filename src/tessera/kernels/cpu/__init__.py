"""CPU kernels. Importing this registers them; nothing is compiled before the first kernel is chosen."""

from tessera.kernels import torch_ref
from tessera.kernels.cpu.features import device

torch_ref.register()

__all__ = ["device"]
