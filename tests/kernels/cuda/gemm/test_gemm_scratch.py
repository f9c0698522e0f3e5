"""Scratch memory of split products."""

import pytest
import torch

from tessera.kernels.cuda.gemm import half_small, half_wide, small, wide
from tessera.kernels.cuda.gemm.scratch import PARTS, Scratch
from tessera.kernels.errors import KernelArgumentError

SMS = 132


def test_is_zero_and_says_what_does_not_fit() -> None:
    scratch = Scratch.allocate(torch.device("cpu"), counters=2, parts=8)
    assert not scratch.counters.any()
    scratch.require("small", 2, 8)
    with pytest.raises(KernelArgumentError, match="needs 3 counters and 0 parts, the scratch has 2 and 8"):
        scratch.require("small", 3)
    with pytest.raises(KernelArgumentError, match="2 counters and 9 parts"):
        scratch.require("wide", 2, 9)


def test_holds_every_variant_s_parts() -> None:
    """At most a part for each block of `wide`, two of the others."""
    needs = [SMS * v.blocks * v.tokens * v.rows for v in wide.VARIANTS]
    needs += [SMS * v.tokens * v.rows for v in half_wide.VARIANTS]
    needs += [2 * SMS * v.tokens * v.rows for v in (*small.VARIANTS, *half_small.VARIANTS)]
    assert max(needs) == PARTS
