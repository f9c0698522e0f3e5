"""The GEMM for few tokens run on the CPU: its source over emulated instructions (../emulated)."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.cuda.gemm.gemm_case import line
from kernels.cuda.gemm.test_gemm_weights import CHAINS, random_weight
from tessera.kernels.cuda.gemm import small
from tessera.kernels.cuda.gemm.small import HALF_SM, WHOLE_SM, Variant
from tessera.kernels.cuda.gemm.weights import PackedWeights
from tessera.kernels.cuda.tiled_rows import tile_rows
from tessera.kernels.jit.cpu import find_compiler
from tessera.kernels.jit.errors import NoCompilerError
from tessera.kernels.jit.nvrtc import CSRC
from tessera.kernels.types import QuantizedRows, TiledRows
from tessera.numerics import QTensor

EMULATED = Path(__file__).parents[1] / "emulated"
CASES: list[tuple[str, Variant, list[tuple[int, int, int, int]]]] = [
    # format, variant, (n, k, m, blocks); little shared memory makes rings of few stages, which come round
    ("g128", Variant(8, smem=34 * 1024), [(130, 640, 7, 1), (200, 640, 5, 7), (70, 256, 19, 4)]),
    ("g64", Variant(16, panels=2, smem=WHOLE_SM), [(130, 384, 16, 2), (300, 384, 13, 5), (200, 256, 37, 3)]),
    (
        "g32",
        Variant(32, slices=4, smem=100 * 1024),
        [(130, 512, 32, 4), (65, 160, 25, 2), (100, 512, 23, 132)],
    ),
    (
        "chn",
        Variant(32, panels=4, strips=2, slices=1, smem=72 * 1024),
        [(330, 384, 30, 3), (200, 1024, 23, 132)],
    ),
    ("w8", Variant(48, panels=2, strips=2, smem=WHOLE_SM), [(200, 384, 41, 4), (130, 128, 130, 2)]),
    ("g128", Variant(64, smem=HALF_SM), [(100, 384, 57, 3)]),
]
ORDERS = 2
"""In each of them blocks come in another order."""
_RUN = """
extern "C" void run_{i}(int grid, const u8* tiles, const float* row_scale, const i32* offset,
                        const bf16* bias, const u8* codes, const float* token_scale, const i32* token_sum,
                        bf16* y, u32* parts, u32* arrived, int m, int n, int steps) {{
  emulated::launch(grid, {threads}, [=] {{
    {expression}(tiles, row_scale, offset, bias, codes, token_scale, token_sum, y, parts, arrived,
                 m, n, steps);
  }});
}}
"""


@pytest.fixture(scope="module", params=[(), ("-DTESSERA_NO_BULK_COPY",)], ids=["bulk", "cp_async"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`run_i` for each of CASES."""
    source = '#include "gemm/small_int8.cuh"\nusing namespace tessera;\n'
    for i, (form, variant, _) in enumerate(CASES):
        weights = CHAINS[form][0].pack(random_weight(64, 128, CHAINS[form][1])).form
        expression = small.instance(variant, weights, torch.bfloat16).inst.expression
        source += _RUN.format(i=i, threads=variant.threads, expression=expression)
    return build(source, request.param, tmp_path_factory.mktemp("emulated"))


def build(source: str, options: tuple[str, ...], folder: Path) -> ctypes.CDLL:
    """`source` over emulated instructions; skips where there is no compiler."""
    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    (folder / "run.cpp").write_text(source)
    options = ("-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", *options)
    include = [f"-I{EMULATED}", f"-I{CSRC}"]
    command = [compiler.path, *options, *include, str(folder / "run.cpp"), "-o", str(folder / "run.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(folder / "run.so"))


def integers(form: str, weight: QTensor) -> torch.Tensor:
    codes = weight.codes.long()
    if form == "w8":
        return codes
    if form == "chn":
        return codes - weight.params["zero"].codes.long()
    step, zero = (
        weight.params[p].codes.long().repeat_interleave(int(form[1:]), 1)[:, : codes.shape[1]]
        for p in ("group_scale", "group_zero")
    )
    return (codes - zero) * step


def run(
    function: Callable[..., object], packed: PackedWeights, x: TiledRows, bias: torch.Tensor, blocks: int
) -> torch.Tensor:
    """y, with three rows of NaN behind it."""
    n, k = packed.tile.shape
    m = x.shape[0]
    y = torch.full((m + 3, n), torch.nan, dtype=torch.bfloat16)
    parts = torch.full((2 * blocks * 256 * 64,), -(2**31), dtype=torch.int32)
    arrived = torch.zeros(blocks * 16, dtype=torch.int32)
    tensors = (
        packed.tiles, packed.scale, packed.offset, bias, x.codes, x.scale, x.row_sum, y, parts, arrived
    )  # fmt: skip
    function(blocks, *(ctypes.c_void_p(t.data_ptr()) for t in tensors), m, n, -(-k // 128))
    assert not arrived.any()
    return y


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{f}-{v}" for f, v, _ in CASES])
def test_every_bit_is_right(library: ctypes.CDLL, i: int) -> None:
    form, variant, shapes = CASES[i]
    layout, chain = CHAINS[form]
    for n, k, m, most in shapes:
        weight = random_weight(n, k, chain, seed=i)
        packed = layout.pack(weight)
        codes = torch.randint(-128, 128, (m, k), dtype=torch.int8)
        scale = torch.rand(m) / 100 + 1e-4
        x = tile_rows(QuantizedRows(codes, scale, codes.sum(1, dtype=torch.int32)))
        bias = torch.randn(n).bfloat16()
        blocks = min(most, line(variant, n, k, m)[0])
        sums = codes.double() @ integers(form, weight).double().T
        scales = packed.scale[:n] * scale[:, None]
        want = (sums.float().double() * scales.double() + bias.double()).float().bfloat16()
        for _ in range(ORDERS):
            y = run(getattr(library, f"run_{i}"), packed, x, bias, blocks)
            assert torch.equal(y[:m], want), (n, k, m, blocks)
            assert y[m:].isnan().all()
