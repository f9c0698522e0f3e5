"""Passes that change a block's weights and keep its function, and which recipe runs which."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.types import AttentionMetadata
from tessera.quantization.balance import balance
from tessera.quantization.block import FloatBlock, Found, Seen
from tessera.quantization.errors import CheckFailedError
from tessera.quantization.smooth_attention import smooth_attention
from tessera.spec import Recipe

Pass = Callable[[FloatBlock, Seen, Recipe], tuple[FloatBlock, Found]]

PASSES: Final[dict[str, tuple[Pass, ...]]] = {
    "rtn": (),
    "gptq": (),
    "qoq": (balance, smooth_attention),
}
"""By algorithm of the recipe, in the order they run."""

TOLERANCE: Final = 1e-4
"""Relative RMS difference that a pass may cause in a block's float32 output: a thousand roundings."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some calibration sequences at a block's input: the residual stream, float32 [T, H]."""

    hidden: Tensor
    meta: AttentionMetadata

    def observe(self, block: FloatBlock) -> tuple[dict[str, Tensor], Tensor]:
        """What the observer sees, and the residual stream after the block."""
        seen: dict[str, Tensor] = {}
        added, residual = block.runnable().forward(
            self.hidden, None, self.meta, observer=lambda point, x: seen.update({point: x})
        )
        return seen, added + residual


def transform(
    block: FloatBlock, recipe: Recipe, sample: Sample, check: bool
) -> tuple[FloatBlock, dict[str, Found]]:
    """The block after the passes of the recipe's algorithm, and what each found.

    The block is observed once: no pass changes a point that a later one looks at. With `check` its output on
    the sample is compared after each pass. Raises CheckFailedError.
    """
    found: dict[str, Found] = {}
    passes = PASSES[recipe.algorithm]
    if not passes:
        return block, found
    seen, output = sample.observe(block)
    for change in passes:
        block, found[change.__name__] = change(block, seen, recipe)
        if check:
            _compare(change, block, output, sample.observe(block)[1])
    return block, found


def _compare(change: Pass, block: FloatBlock, before: Tensor, after: Tensor) -> None:
    difference = float(torch.linalg.norm(after - before) / torch.linalg.norm(before).clamp(min=1e-30))
    if not difference <= TOLERANCE:
        raise CheckFailedError(
            f"{change.__name__} changed the output of block {block.index} by {difference:.2e} (relative "
            f"RMS), more than {TOLERANCE:.0e}: the pass does not fit this architecture. Nothing was written; "
            "a recipe with -gptq or -rtn transforms nothing"
        )
