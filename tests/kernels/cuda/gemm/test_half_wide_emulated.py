"""Products of many tokens with 16-bit rows run on the CPU: the kernel's source over emulated instructions."""

import ctypes

import pytest
import torch

from kernels.cuda.cuda_case import EPSILON, relative_rms
from kernels.cuda.gemm.test_half_weights import CHAINS, random_weight
from kernels.cuda.gemm.test_small_emulated import build
from tessera.kernels.cuda.gemm import half_wide
from tessera.kernels.cuda.gemm.half_weights import pack
from tessera.kernels.cuda.gemm.half_wide import Variant

BF16, F16 = torch.bfloat16, torch.float16
CASES: list[tuple[str, torch.dtype, Variant, list[tuple[int, int, int, int, int, int]]]] = [
    # format, type, variant, (n, k, m, blocks, cut tiles, cuts of each)
    ("ragged", BF16, Variant(96, 192), [(200, 1800, 37, 3, 0, 1), (130, 648, 40, 6, 2, 3)]),
    ("g64", F16, Variant(64, 192), [(330, 1536, 65, 2, 0, 1), (130, 704, 60, 6, 1, 6)]),
    ("g32", BF16, Variant(32, 128, halves=True), [(130, 1504, 40, 2, 0, 1), (64, 640, 16, 5, 1, 5)]),
    ("chn", F16, Variant(128, 128), [(136, 1104, 130, 4, 2, 2), (100, 640, 97, 3, 1, 3)]),
    ("symmetric_chn", BF16, Variant(128, 192), [(200, 640, 129, 2, 2, 1), (385, 512, 100, 6, 3, 2)]),
    ("ragged", F16, Variant(192, 128), [(130, 392, 193, 3, 1, 2)]),
    ("g64", BF16, Variant(32, 256), [(200, 1024, 20, 4, 1, 4)]),
]
_CPP = {BF16: "bf16", F16: "f16"}
_RUN = """
extern "C" void run_{i}(int grid, const u8* tiles, const float* row, const {t}* x, const {t}* bias, {t}* y,
                        float* parts, u32* arrived, int m, int n, int k, int cut_tiles, int cuts) {{
  const TensorMap map{{reinterpret_cast<const u16*>(x), m, k, {box}}};
  emulated::launch(grid, {threads}, [=] {{
    {expression}(map, tiles, row, bias, y, parts, arrived, m, n, div_up(k, 128), cut_tiles, cuts);
  }});
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`run_i` for each of CASES."""
    source = '#include "gemm/half_wide.cuh"\nusing namespace tessera;\n'
    for i, (form, dtype, variant, _) in enumerate(CASES):
        group = pack(random_weight(64, 128, CHAINS[form])).group
        source += _RUN.format(
            i=i,
            t=_CPP[dtype],
            box=variant.tokens,
            threads=variant.threads,
            expression=half_wide.instance(variant, dtype, group).inst.expression,
        )
    return build(source, (), tmp_path_factory.mktemp("emulated"))


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{f}-{t}-{v}" for f, t, v, _ in CASES])
def test_rounds_as_it_says_and_whoever_comes_last_gives_the_same_bits(library: ctypes.CDLL, i: int) -> None:
    form, dtype, variant, shapes = CASES[i]
    for n, k, m, blocks, cut_tiles, cuts in shapes:
        weight = random_weight(n, k, CHAINS[form], seed=i)
        packed = pack(weight)
        x, bias = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype)
        places = max(1, cut_tiles * cuts) * variant.tokens * variant.rows
        parts = torch.full((places,), torch.nan)
        arrived = torch.zeros(max(1, cut_tiles) * variant.panels * variant.slices, dtype=torch.int32)
        found = []
        for _ in range(2):  # blocks come in another order each time
            y = torch.full((m + 3, n), torch.nan, dtype=dtype)
            tensors = packed.tiles, packed.row, x, bias, y, parts, arrived
            pointers = (ctypes.c_void_p(t.data_ptr()) for t in tensors)
            getattr(library, f"run_{i}")(blocks, *pointers, m, n, k, cut_tiles, cuts)
            assert not arrived.any() and y[m:].isnan().all()
            found.append(y[:m])
        want = x.double() @ weight.dequantize(torch.float64).T + bias.double()
        # Of y; in groups also of each weight, and in bf16 of the scale.
        roundings = 1 + (packed.group > 0) * (1 + (dtype == BF16))
        assert relative_rms(found[0], want) < EPSILON[dtype] * (roundings / 3) ** 0.5, (n, k, m)
        assert torch.equal(*found)
