"""Products of many tokens with 16-bit rows without a GPU: how work is cut, what fits, what was compiled."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.cuda.gemm.test_wide import shares
from tessera.kernels.cuda import sass
from tessera.kernels.cuda.gemm import half_wide
from tessera.kernels.cuda.gemm.half_wide import VARIANTS, Variant
from tessera.kernels.jit.nvrtc import compile_kernel

GROUPS = (32, 64, 128, 0)


@given(
    tokens=st.integers(1, 3000),
    n=st.integers(1, 9000),
    k=st.integers(1, 9000),
    variant=st.sampled_from(VARIANTS),
    sms=st.sampled_from((1, 7, 132)),
)
def test_every_step_of_every_tile_is_done_once(
    tokens: int, n: int, k: int, variant: Variant, sms: int
) -> None:
    cut = half_wide.plan(variant, n, k, tokens, sms)
    tiles = -(-tokens // variant.tokens) * -(-n // variant.rows)
    steps = -(-k // 128)
    dealt = shares(cut, tiles, steps)
    seen = [0] * (tiles * steps)
    for mine in dealt:
        assert mine, "a block without work was launched"
        for tile, first, end in mine:
            assert first < end
            for step in range(first, end):
                seen[tile * steps + step] += 1
    assert set(seen) == {1}
    assert cut.grid <= sms
    load = [sum(end - first for _, first, end in mine) for mine in dealt]
    assert max(load) <= min(load) + 2 * steps


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("group", GROUPS)
def test_shared_memory_holds_a_ring(variant: Variant, group: int) -> None:
    stages = variant.stages(group)
    assert stages >= (3 if group != 32 else 2)
    blocks = 1 + variant.halves
    assert blocks * (variant.smem(stages, group) + 1024) <= 228 * 1024


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("group", [128, 0])
@pytest.mark.parametrize(
    "variant", [Variant(64, 128, halves=True), Variant(128, 192), Variant(256, 128)], ids=str
)
def test_a_weight_is_made_in_registers(dtype: torch.dtype, group: int, variant: Variant) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    code = sass.read(compile_kernel(half_wide.instance(variant, dtype, group).instance("sm_90a")).cubin)
    loop = code.main_loop("HGMMA")
    assert loop.count("HGMMA") == 8 and not code.uses_local_memory
    words, half_precision = 8, dtype == torch.float16
    assert loop.count("LDS") == 2 + 2 * bool(group)
    assert loop.count("LOP3") <= 4 * words + 8
    assert loop.count("SHF") <= (1 if half_precision else 3) * words + 6
    assert loop.count("HADD2") <= 4 * words + 2 and loop.count("HMUL2") == 4 * words * bool(group)
    assert len(loop.instructions) <= 230
