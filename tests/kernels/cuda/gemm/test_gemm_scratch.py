"""Scratch memory of split products."""

import pytest
import torch

from tessera.kernels.cuda.gemm.scratch import Scratch
from tessera.kernels.errors import KernelArgumentError


def test_is_zero_and_says_what_does_not_fit() -> None:
    scratch = Scratch.allocate(torch.device("cpu"), sums=64, counters=2, parts=8)
    assert not scratch.sums.any() and not scratch.counters.any()
    scratch.require("small", 64, 2)
    with pytest.raises(
        KernelArgumentError, match="needs 65 sums, 2 counters and 0 parts, the scratch has 64, 2"
    ):
        scratch.require("small", 65, 2)
    with pytest.raises(KernelArgumentError, match="3 counters"):
        scratch.require("small", 1, 3)
    with pytest.raises(KernelArgumentError, match="9 parts, the scratch has 64, 2 and 8"):
        scratch.require("wide", counters=2, parts=9)
