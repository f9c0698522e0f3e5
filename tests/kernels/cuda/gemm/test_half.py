"""Products of few tokens with 16-bit rows without a GPU, and the choice of a variant for all."""

from dataclasses import replace

import pytest
import torch

from tessera.kernels.cuda import sass
from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.gemm import half_small, small
from tessera.kernels.cuda.gemm.half_choose import SMALL, WIDE, choose, cost_us, plan
from tessera.kernels.cuda.gemm.half_measured import MEASURED
from tessera.kernels.jit.nvrtc import compile_kernel

GROUPS = (32, 64, 128, 0)


H200 = DeviceInfo(0, "NVIDIA H200", 90, 132, 2**37, 2**25, 232_448, 233_472, 1980.0)
A100 = DeviceInfo(0, "NVIDIA A100", 80, 108, 2**36, 2**25, 166_912, 167_936, 1410.0)


def test_measured_choices_exist_and_are_taken() -> None:
    for (n, k), by_tokens in MEASURED[H200.name].items():
        assert [str(choose(n, k, tokens, H200)) for tokens in by_tokens] == list(by_tokens.values())


def test_other_shapes_get_what_costs_least() -> None:
    other = replace(H200, name="another")
    for n, k in ((6144, 4096), (28672, 4096), (8192, 28672)):
        for tokens, name in MEASURED[H200.name][n, k].items():
            choice = choose(n, k, tokens, other)
            assert choice.variant.tokens <= 2 * max(tokens, 8), (choice, name)
            measured = next(c for c in SMALL + WIDE if str(c) == name)
            # The cost ranks well enough if what was fastest is near its best.
            costs = [cost_us(c, n, k, tokens, other) for c in (choice, measured)]
            assert costs[0] <= costs[1] <= 1.4 * costs[0], (choice, name, costs)
    assert {c.variant for c in plan(4096, 4096, A100)} <= set(half_small.ANYWHERE)


@pytest.mark.parametrize("variant", half_small.VARIANTS, ids=str)
@pytest.mark.parametrize("group", GROUPS)
def test_shared_memory_holds_a_ring_of_few_tokens(variant: small.Variant, group: int) -> None:
    form = half_small.Form(group)
    assert variant.stages(form, small.WHOLE_SM) >= 2
    if variant in half_small.ANYWHERE:
        assert variant.stages(form, 98 * 1024) >= 2  # of a block on sm_86 and sm_89


def read(variant: small.Variant, dtype: torch.dtype, group: int) -> sass.Sass:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    return sass.read(compile_kernel(half_small.instance(variant, dtype, group).instance("sm_90a")).cubin)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("group", [128, 0])
@pytest.mark.parametrize("tokens", [8, 16])
def test_two_weights_of_few_tokens_cost_two_instructions_and_a_quarter(
    dtype: torch.dtype, group: int, tokens: int
) -> None:
    code = read(small.Variant(tokens, panels=2, strips=2, smem=small.WHOLE_SM), dtype, group)
    loop = min((x for x in code.loops if x.count("HMMA")), key=lambda x: len(x.instructions))
    assert not code.uses_local_memory
    # Two strips of rows for each 8 tokens and each of eight steps of k = 16.
    assert loop.count("HMMA") == 2 * tokens // 8 * 8
    assert loop.count("LDSM") == 4 * tokens // 8 and loop.count("LDS") == 4 + 4 * bool(group)
    words = 16  # of 8 weights: a shift, four ANDs, four multiply-adds
    assert loop.count("LOP3", "SHF") <= 5 * words + 16
    assert loop.count("HFMA2") <= 4 * words + 8 and loop.count("HADD2", "HMUL2") <= 8
    assert len(loop.instructions) <= 9 * words + 4 * tokens + 72
