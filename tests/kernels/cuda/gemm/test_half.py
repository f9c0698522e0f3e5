"""Products of int4 weights and 16-bit rows without a GPU: how work is cut, what fits, what was compiled."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.kernels.cuda import sass
from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.gemm import half, half_small, small
from tessera.kernels.cuda.gemm.half import Variant
from tessera.kernels.cuda.gemm.half_choose import SMALL, WIDE, Choice, choose, cost_us, plan, split_of
from tessera.kernels.cuda.gemm.half_measured import MEASURED
from tessera.kernels.cuda.gemm.scratch import COUNTERS, PARTS
from tessera.kernels.jit.nvrtc import compile_kernel

GROUPS = (32, 64, 128, 0)


def shares(cut: half.Cut, tiles: int, steps: int) -> list[list[tuple[int, int, int]]]:
    """Segments (tile, first step, last step) of each block, as `Share` of half.cuh deals them."""
    found = []
    for block in range(cut.grid):
        mine = []
        at = min(block * cut.quota, cut.split_tiles * steps)
        end = min(at + cut.quota, cut.split_tiles * steps)
        while at < end:
            tile, first = divmod(at, steps)
            last = min(steps, first + end - at)
            mine.append((tile, first, last))
            at += last - first
        mine += [(tile, 0, steps) for tile in range(cut.split_tiles + block, tiles, cut.grid)]
        found.append(mine)
    return found


@given(
    variant=st.sampled_from(half.VARIANTS),
    tiles=st.integers(1, 900),
    steps=st.integers(1, 70),
    sms=st.sampled_from((1, 7, 132)),
)
def test_every_step_of_every_tile_is_done_once(variant: Variant, tiles: int, steps: int, sms: int) -> None:
    blocks = sms * variant.blocks
    for split in half.splits(variant, tiles, sms):
        cut = half.cut(tiles, steps, blocks, split)
        assert cut.grid <= blocks
        seen = [0] * (tiles * steps)
        for mine in shares(cut, tiles, steps):
            assert mine, "a block without work was launched"
            parts = [tile for tile, first, last in mine if last - first < steps]
            assert len(parts) <= 2, "two places are kept for a block's parts of tiles"
            assert len(parts) < 2 or parts[0] < parts[1]
            for tile, first, last in mine:
                for step in range(first, last):
                    seen[tile * steps + step] += 1
        assert set(seen) == {1}


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


@pytest.mark.parametrize("choice", WIDE, ids=str)
@pytest.mark.parametrize("tokens", [1, 30, 2048, 16384])
def test_scratch_suffices_for_every_choice(choice: Choice, tokens: int) -> None:
    assert isinstance(choice.variant, Variant)
    for n, k in ((128, 32), (28672, 4096), (57344, 8192), (128256, 4096)):
        split = split_of(choice, n, tokens, 132)
        cut = half.cut(
            half.tiles_of(choice.variant, n, tokens), -(-k // 128), 132 * choice.variant.blocks, split
        )
        counters, parts = half.needs(choice.variant, cut)
        assert counters <= COUNTERS and parts <= PARTS


@pytest.mark.parametrize("variant", half.VARIANTS, ids=str)
@pytest.mark.parametrize("group", GROUPS)
def test_shared_memory_holds_a_ring(variant: Variant, group: int) -> None:
    stages = variant.stages(group)
    assert stages >= (3 if group != 32 else 2)
    blocks = 2 if variant.light else 1
    assert blocks * (variant.smem(stages, group) + 2048) <= 228 * 1024
    assert variant.blocks <= blocks


@pytest.mark.parametrize("variant", half_small.VARIANTS, ids=str)
@pytest.mark.parametrize("group", GROUPS)
def test_shared_memory_holds_a_ring_of_few_tokens(variant: small.Variant, group: int) -> None:
    form = half_small.Form(group)
    assert variant.stages(form, small.WHOLE_SM) >= 2
    if variant in half_small.ANYWHERE:
        assert variant.stages(form, 98 * 1024) >= 2  # of a block on sm_86 and sm_89


def read(variant: Variant | small.Variant, dtype: torch.dtype, group: int) -> sass.Sass:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    kernel = Choice(variant).instance(dtype, group)
    return sass.read(compile_kernel(kernel.instance("sm_90a")).cubin)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("group", [128, 0])
@pytest.mark.parametrize("variant", [Variant(64), Variant(128, 256), Variant(256)], ids=str)
def test_a_weight_of_many_tokens_is_made_in_registers(
    dtype: torch.dtype, group: int, variant: Variant
) -> None:
    loop = read(variant, dtype, group).main_loop("HGMMA")
    assert loop.count("HGMMA") == 8 and loop.count("LDL", "STL") == 0
    words, half_precision = 8, dtype == torch.float16
    assert loop.count("LDS") == 2 + 2 * bool(group)
    assert loop.count("LOP3") <= 4 * words + 8
    assert loop.count("SHF") <= (1 if half_precision else 3) * words + 6
    assert loop.count("HADD2") <= 4 * words + 2 and loop.count("HMUL2") == 4 * words * bool(group)
    assert len(loop.instructions) <= 240
