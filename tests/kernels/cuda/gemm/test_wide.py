"""The wide GEMM without a GPU: how work is cut, what fits, what the compiler made of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.kernels.cuda import sass
from tessera.kernels.cuda.gemm import half_wide, wide
from tessera.kernels.cuda.gemm.weights import Format
from tessera.kernels.cuda.gemm.wide import Variant
from tessera.kernels.jit.nvrtc import compile_kernel

FORMATS = [Format(4, 128), Format(4, 64), Format(4, 32), Format(4, 0), Format(8, 0)]


def shares(cut: wide.Plan | half_wide.Plan, tiles: int, steps: int) -> list[list[tuple[int, int, int, bool]]]:
    """Segments (tile, first step, last step) of each block, as `Share` of wide_work.cuh deals them."""
    found = []
    run = -(-steps // cut.cuts)
    for block in range(cut.grid):
        mine = []
        if block < cut.cut_tiles * cut.cuts:
            tile, part = divmod(block, cut.cuts)
            mine = [(tile, part * run, min(steps, part * run + run))]
        mine += [(tile, 0, steps) for tile in range(cut.cut_tiles + block, tiles, cut.grid)]
        found.append(mine)
    return found


@given(
    tokens=st.integers(1, 3000),
    n=st.integers(1, 9000),
    k=st.integers(1, 9000),
    variant=st.sampled_from(wide.VARIANTS),
    sms=st.sampled_from((1, 7, 132)),
)
def test_every_step_of_every_tile_is_done_once(
    tokens: int, n: int, k: int, variant: Variant, sms: int
) -> None:
    cut = wide.plan(variant, Format(4, 128), n, k, tokens, sms)
    tiles = -(-tokens // variant.tokens) * -(-n // variant.rows)
    steps = -(-k // 128)
    dealt = shares(cut, tiles, steps)
    seen = [0] * (tiles * steps)
    for mine in dealt:
        assert mine, "a block without work was launched"
        for tile, first, last in mine:
            assert first < last
            for step in range(first, last):
                seen[tile * steps + step] += 1
    assert set(seen) == {1}
    assert cut.grid <= sms * variant.blocks
    load = [sum(last - first for _, first, last in mine) for mine in dealt]
    assert max(load) <= min(load) + 2 * steps


@pytest.mark.parametrize("variant", wide.VARIANTS, ids=str)
@pytest.mark.parametrize("weights", FORMATS, ids=str)
def test_shared_memory_holds_a_ring(variant: Variant, weights: Format) -> None:
    stages = variant.stages(weights)
    assert stages >= 3 and stages % variant.teams == 0
    assert (1 + variant.halves) * (variant.smem(stages, weights) + 1024) <= 228 * 1024


def read(weights: Format, *shape: int) -> sass.Sass:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    kernel = wide.instance(Variant(*shape), weights, torch.bfloat16)
    return sass.read(compile_kernel(kernel.instance("sm_90a")).cubin)


@pytest.mark.parametrize("shape", [(128, 4), (256, 2), (128, 2, 2)], ids=str)
@pytest.mark.parametrize("weights", FORMATS[:4], ids=str)
def test_main_loop_unpacks_eight_weights_in_five_instructions(
    weights: Format, shape: tuple[int, int]
) -> None:
    code = read(weights, *shape)
    loop = code.main_loop("IGMMA")
    assert loop.count("IGMMA") == 4 and not code.uses_local_memory
    words, groups = 8, 128 // weights.group if weights.group else 0
    assert loop.count("LDS") == 2 + groups
    # AND, SHR, AND a word; two bytes cut out for each group; a handful of addresses and lanes.
    assert loop.count("LOP3", "SHF") <= 3 * words + 3 * groups + 10
    assert loop.count("PRMT") <= 2 * groups
    multiply_adds = 2 * words if groups else 0
    moved = 10  # the next step's words into place, constants
    assert multiply_adds <= loop.count("IMAD") <= multiply_adds + moved
    assert len(loop.instructions) <= 104 + 12 * groups


def test_eight_bits_go_from_shared_memory_to_the_tensor_cores() -> None:
    loop = read(Format(8, 0), 128, 4).main_loop("IGMMA")
    assert loop.count("IGMMA") == 4 and loop.count("LDS") == 0
    assert len(loop.instructions) <= 56
