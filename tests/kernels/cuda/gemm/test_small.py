"""What is known of the GEMM for few tokens without a GPU: how work is cut, what fits, what is compiled."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.kernels.cuda import sass
from tessera.kernels.cuda.gemm import small
from tessera.kernels.cuda.gemm.small import Variant, cuts, grid
from tessera.kernels.cuda.gemm.weights import FORMATS, Format
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.jit.nvrtc import compile_kernel

G128 = Format(4, 128)


@given(
    n=st.integers(1, 200_000),
    k=st.integers(1, 60_000),
    tokens=st.integers(1, 300),
    sms=st.sampled_from((1, 7, 46, 108, 132)),
    variant=st.sampled_from(small.VARIANTS),
)
def test_every_block_has_work_and_sms_lie_idle_only_for_whole_tiles(
    n: int, k: int, tokens: int, sms: int, variant: Variant
) -> None:
    steps, tiles = -(-k // 128), -(-n // variant.rows) * -(-tokens // variant.tokens)
    blocks = grid(n, k, tokens, sms, variant, G128)
    assert 1 <= blocks <= min(tiles * steps, sms)
    assert blocks > 0.95 * min(tiles * steps, sms) - 1 or tiles % blocks == 0


def test_grids_of_llama_shapes_divide_no_tile_where_that_is_cheap() -> None:
    one, two = Variant(8), Variant(16, panels=2, smem=small.WHOLE_SM)
    assert grid(4096, 4096, 8, 132, one, G128) == 64
    assert grid(6144, 4096, 8, 132, one, G128) == 96
    assert grid(28672, 4096, 16, 132, two, G128) == 112
    assert grid(57344, 8192, 8, 132, one, G128) == 128  # seven tiles each
    assert grid(4096, 14336, 8, 132, one, G128) == 128  # half a tile each: K is long


def test_cuts_counts_tiles_that_two_pieces_share() -> None:
    assert cuts(12, 4, 3) == 0
    assert cuts(12, 4, 2) == 1  # at 6
    assert cuts(12, 4, 5) == 3  # pieces of 3, 3, 2, 2, 2: cut at 3, 6, 8, 10
    assert cuts(12, 4, 12) == 9


@pytest.mark.parametrize("variant", small.VARIANTS, ids=str)
@pytest.mark.parametrize("weights", FORMATS, ids=str)
def test_shared_memory_holds_a_ring(variant: Variant, weights: Format) -> None:
    stages = variant.stages(weights, small.WHOLE_SM)
    assert 2 <= stages <= small.MAX_STAGES
    assert stages * variant.stage_bytes(weights) + variant.merge_bytes <= variant.smem


@pytest.mark.parametrize("weights", FORMATS, ids=str)
@pytest.mark.parametrize("tokens", [8, 16, 32, 64])
def test_the_smallest_gpus_have_a_variant(weights: Format, tokens: int) -> None:
    limit = 98 * 1024  # of a block on sm_86 and sm_89
    assert any(v.tokens == tokens and v.stages(weights, limit) >= 2 for v in small.ANYWHERE)


def test_a_ring_that_does_not_fit_is_refused_with_numbers() -> None:
    with pytest.raises(KernelArgumentError, match=r"two stages take 131104 bytes.*a block has 65536"):
        small.instance(Variant(64, 2, 2, 2, smem=65536), Format(8, 0), torch.bfloat16)


def read(variant: Variant, weights: Format, arch: str = "sm_90a") -> sass.Sass:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    kernel = small.instance(variant, weights, torch.bfloat16)
    return sass.read(compile_kernel(kernel.instance(arch)).cubin)


def main_loop(code: sass.Sass) -> sass.Loop:
    """The smallest loop that multiplies; waiting for a stage is a loop inside it."""
    return min((x for x in code.loops if x.count("IMMA")), key=lambda x: len(x.instructions))


@pytest.mark.parametrize("weights", FORMATS[:4], ids=str)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_main_loop_unpacks_eight_weights_in_five_instructions(arch: str, weights: Format) -> None:
    code = read(Variant(8), weights, arch)
    loop = main_loop(code)
    assert not code.uses_local_memory
    assert loop.count("IMMA") == 4 and loop.count("LDSM") == 2
    words, groups = 8, 128 // weights.group if weights.group else 0
    assert loop.count("LDS") >= 2 + groups  # sm_80 reads some words apart
    # AND, SHR, AND a word; two bytes cut out for each group; a handful of addresses.
    assert loop.count("LOP3", "SHF") <= 3 * words + 2 * groups + 10
    assert loop.count("PRMT") <= 2 * groups
    # HBM brings a tile every 248 clocks, in which four schedulers issue 992: four such warps are a tile.
    assert len(loop.instructions) <= 90 + 12 * groups
    assert code.count("UBLKCP") > 0 if arch == "sm_90a" else code.count("LDGSTS") > 0


def test_eight_bits_go_from_shared_memory_to_the_tensor_cores() -> None:
    loop = main_loop(read(Variant(8), Format(8, 0)))
    assert loop.count("IMMA") == 4 and loop.count("LDSM") == 6 and loop.count("LDS") == 0
    assert len(loop.instructions) <= 48
