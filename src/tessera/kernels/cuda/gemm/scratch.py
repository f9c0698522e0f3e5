"""Memory in which blocks that share an output tile put its int32 sums together."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda.errors import CaptureCompileError
from tessera.kernels.errors import KernelArgumentError

SUMS: Final = 8 << 20
"""int32 sums of a device: what 132 blocks with a tile of 256 tokens by 128 rows each need, and more."""
COUNTERS: Final = 4096
PARTS: Final = 132 * 2 * 36864
"""Two parts of the largest tile, 192 tokens by 192 rows, for each of 132 blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """`sums` int32 and `counters` int32, all zero between launches: a launch leaves them as it found them.
    `parts` int32, undefined between launches: a place to each block, where sums are kept and not added up.

    Integer sums do not depend on the order of arrivals, so neither does a result.
    """

    sums: Tensor
    counters: Tensor
    parts: Tensor

    @classmethod
    def allocate(
        cls, device: int | torch.device, sums: int = SUMS, counters: int = COUNTERS, parts: int = PARTS
    ) -> "Scratch":
        return cls(
            torch.zeros(sums, dtype=torch.int32, device=device),
            torch.zeros(counters, dtype=torch.int32, device=device),
            torch.empty(parts, dtype=torch.int32, device=device),
        )

    def require(self, kernel: str, sums: int = 0, counters: int = 0, parts: int = 0) -> None:
        """Raises KernelArgumentError where a launch of `kernel` needs more than there is."""
        have = self.sums.numel(), self.counters.numel(), self.parts.numel()
        if sums > have[0] or counters > have[1] or parts > have[2]:
            raise KernelArgumentError(
                f"{kernel}: needs {sums} sums, {counters} counters and {parts} parts, the scratch has "
                f"{have[0]}, {have[1]} and {have[2]}; allocate more or choose a smaller tile"
            )


@cache
def scratch(index: int) -> Scratch:
    """That of device `index`, shared by all layers: a device's products run on one stream at a time.

    Raises CaptureCompileError while a graph is captured: the zeros would be written at replays only.
    """
    if torch.cuda.is_current_stream_capturing():
        raise CaptureCompileError("products have no scratch yet: run one before capturing a CUDA graph")
    return Scratch.allocate(index)
