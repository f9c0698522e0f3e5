"""Products of few tokens with 16-bit rows run on the CPU: the kernel's source over emulated instructions."""

import ctypes

import pytest
import torch
from torch import Tensor

from kernels.cuda.cuda_case import EPSILON, relative_rms
from kernels.cuda.gemm.gemm_case import line
from kernels.cuda.gemm.test_half_weights import CHAINS, random_weight
from kernels.cuda.gemm.test_small_emulated import build
from tessera.kernels.cuda.gemm import half_small
from tessera.kernels.cuda.gemm.half_weights import HalfWeights, pack
from tessera.kernels.cuda.gemm.small import HALF_SM, WHOLE_SM, Variant

BF16, F16 = torch.bfloat16, torch.float16
CASES: list[tuple[str, torch.dtype, Variant, list[tuple[int, int, int, int]]]] = [
    # format, type, variant, (n, k, m, blocks); little shared memory makes rings of few stages
    ("ragged", BF16, Variant(8, strips=2, slices=4, smem=64 * 1024), [(130, 640, 7, 1), (200, 648, 5, 7)]),
    ("ragged", F16, Variant(8, smem=HALF_SM), [(70, 264, 19, 4)]),
    ("g64", F16, Variant(16, panels=2, strips=2, smem=100 * 1024), [(130, 384, 16, 2), (300, 384, 13, 5)]),
    ("g32", BF16, Variant(16, panels=4, strips=4, slices=2, smem=WHOLE_SM), [(330, 1024, 37, 11)]),
    ("symmetric_chn", BF16, Variant(32, panels=2, strips=2, slices=1, smem=WHOLE_SM), [(330, 384, 30, 3)]),
    ("chn", F16, Variant(8, panels=2, strips=1, smem=WHOLE_SM), [(65, 160, 25, 2), (100, 520, 7, 132)]),
]
_CPP = {BF16: "bf16", F16: "f16"}
_RUN = """
extern "C" void run_{i}(int grid, const u8* tiles, const float* row, const {t}* x, const {t}* bias, {t}* y,
                        u32* parts, u32* arrived, int m, int n, int k, int steps) {{
  const TensorMap map{{reinterpret_cast<const u16*>(x), m, k, {box}}};
  emulated::launch(grid, {threads}, [=] {{
    {expression}(map, tiles, row, x, bias, y, parts, arrived, m, n, k, steps);
  }});
}}
"""


@pytest.fixture(scope="module", params=[(), ("-DTESSERA_NO_BULK_COPY",)], ids=["bulk", "cp_async"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`run_i` for each of CASES."""
    source = '#include "gemm/small_half.cuh"\nusing namespace tessera;\n'
    for i, (form, dtype, variant, _) in enumerate(CASES):
        group = pack(random_weight(64, 128, CHAINS[form])).group
        source += _RUN.format(
            i=i,
            t=_CPP[dtype],
            box=variant.tokens,
            threads=variant.threads,
            expression=half_small.instance(variant, dtype, group).inst.expression,
        )
    return build(source, request.param, tmp_path_factory.mktemp("emulated"))


def run(library: ctypes.CDLL, i: int, packed: HalfWeights, x: Tensor, bias: Tensor, blocks: int) -> Tensor:
    """y, with three rows of NaN behind it."""
    (n, k), m = packed.tile.shape, x.shape[0]
    y = torch.full((m + 3, n), torch.nan, dtype=x.dtype)
    parts = torch.full((2 * blocks * 256 * 32,), torch.nan)
    arrived = torch.zeros(blocks * 16, dtype=torch.int32)
    tensors = packed.tiles, packed.row, x, bias, y, parts, arrived
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in tensors)
    getattr(library, f"run_{i}")(blocks, *pointers, m, n, k, -(-k // 128))
    assert not arrived.any()
    return y


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{f}-{t}-{v}" for f, t, v, _ in CASES])
def test_rounds_once_and_whoever_comes_last_gives_the_same_bits(library: ctypes.CDLL, i: int) -> None:
    form, dtype, variant, shapes = CASES[i]
    for n, k, m, most in shapes:
        weight = random_weight(n, k, CHAINS[form], seed=i)
        x, bias = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype)
        blocks = min(most, line(variant, n, k, m)[0])
        # Blocks come in another order each time.
        first, second = (run(library, i, pack(weight), x, bias, blocks) for _ in range(2))
        want = x.double() @ weight.dequantize(torch.float64).T + bias.double()
        assert relative_rms(first[:m], want) < EPSILON[dtype] / 3**0.5, (n, k, m, blocks)
        assert torch.equal(first[:m], second[:m])
        assert first[m:].isnan().all()
