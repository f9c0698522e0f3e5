"""Memory in which blocks that share an output tile put its sums together."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda.errors import CaptureCompileError
from tessera.kernels.errors import KernelArgumentError

COUNTERS: Final = 4096
PARTS: Final = 132 * 256 * 128
"""A part of the largest tile, 256 tokens by 128 rows, for each of 132 blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """`counters` int32, all zero between launches: a launch leaves them as it found them. `parts`, 32 bits
    each, undefined between launches: places where blocks leave int32 or fp32 sums for whoever adds them up.
    """

    counters: Tensor
    parts: Tensor

    @classmethod
    def allocate(cls, device: int | torch.device, counters: int = COUNTERS, parts: int = PARTS) -> "Scratch":
        return cls(
            torch.zeros(counters, dtype=torch.int32, device=device),
            torch.empty(parts, dtype=torch.int32, device=device),
        )

    def require(self, kernel: str, counters: int = 0, parts: int = 0) -> None:
        """Raises KernelArgumentError where a launch of `kernel` needs more than there is."""
        have = self.counters.numel(), self.parts.numel()
        if counters > have[0] or parts > have[1]:
            raise KernelArgumentError(
                f"{kernel}: needs {counters} counters and {parts} parts, the scratch has {have[0]} and "
                f"{have[1]}; allocate more or choose a smaller tile"
            )


@cache
def scratch(index: int) -> Scratch:
    """That of device `index`, shared by all layers: a device's products run on one stream at a time.

    Raises CaptureCompileError while a graph is captured: the zeros would be written at replays only.
    """
    if torch.cuda.is_current_stream_capturing():
        raise CaptureCompileError("products have no scratch yet: run one before capturing a CUDA graph")
    return Scratch.allocate(index)
