"""The wide GEMM run on the CPU: its source over emulated instructions (../emulated)."""

import ctypes
import subprocess

import pytest
import torch

from kernels.cuda.gemm.test_gemm_weights import CHAINS, random_weight
from kernels.cuda.gemm.test_small_emulated import EMULATED, integers
from tessera.kernels.cuda.gemm import wide
from tessera.kernels.cuda.gemm.wide import Variant
from tessera.kernels.cuda.tiled_rows import tile_rows
from tessera.kernels.jit.cpu import find_compiler
from tessera.kernels.jit.errors import NoCompilerError
from tessera.kernels.jit.nvrtc import CSRC
from tessera.kernels.types import QuantizedRows

CASES: list[tuple[str, Variant, list[tuple[int, int, int, int, int, int]]]] = [
    # format, variant, (n, k, m, blocks, cut tiles, cuts of each)
    ("g128", Variant(32, 2), [(200, 1792, 37, 3, 0, 1), (130, 640, 40, 6, 2, 3)]),
    (
        "g64",
        Variant(64, 2, teams=2),
        [(130, 1984, 65, 2, 0, 1), (257, 704, 70, 4, 2, 2), (70, 128, 5, 1, 0, 1)],
    ),
    ("g32", Variant(16, 2, halves=True), [(130, 1504, 20, 2, 0, 1), (64, 640, 16, 5, 1, 5)]),
    ("chn", Variant(128, 2, teams=2), [(136, 1100, 130, 2, 2, 1), (100, 640, 97, 3, 1, 3)]),
    ("w8", Variant(32, 2, teams=2), [(200, 1300, 37, 2, 1, 2)]),
    ("w8", Variant(96, 3), [(200, 640, 100, 2, 0, 1)]),
    ("g128", Variant(192, 2), [(130, 384, 193, 3, 1, 2)]),
]
ORDERS = 2
"""In each of them blocks come in another order."""
_RUN = """
extern "C" void run_{i}(int grid, const u8* tiles, const u8* codes, const i32* offset, const float* row_scale,
                        const bf16* bias, const i32* token_sum, const float* token_scale, bf16* y, i32* parts,
                        u32* arrived, int m, int n, int steps, int cut_tiles, int cuts) {{
  const TensorMap map{{reinterpret_cast<const u16*>(y), m, n, {box}}};
  emulated::launch(grid, {threads}, [=] {{
    {expression}(map, tiles, codes, offset, row_scale, bias, token_sum, token_scale, y, parts, arrived, m, n,
                 steps, cut_tiles, cuts);
  }});
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`run_i` for each of CASES."""
    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    source = '#include "gemm/wide.cuh"\nusing namespace tessera;\n'
    for i, (form, variant, _) in enumerate(CASES):
        weights = CHAINS[form][0].pack(random_weight(64, 128, CHAINS[form][1])).form
        expression = wide.instance(variant, weights, torch.bfloat16).inst.expression
        threads = 128 * (1 + variant.warpgroups)
        source += _RUN.format(i=i, threads=threads, expression=expression, box=variant.slice_tokens)
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "run.cpp").write_text(source)
    options = ["-std=c++20", "-O2", "-w", "-shared", "-fPIC", "-pthread", f"-I{EMULATED}", f"-I{CSRC}"]
    command = [compiler.path, *options, str(folder / "run.cpp"), "-o", str(folder / "run.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(folder / "run.so"))


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{f}-{v}" for f, v, _ in CASES])
def test_every_bit_is_right(library: ctypes.CDLL, i: int) -> None:
    form, variant, shapes = CASES[i]
    layout, chain = CHAINS[form]
    for n, k, m, blocks, cut_tiles, cuts in shapes:
        weight = random_weight(n, k, chain, seed=i)
        packed = layout.pack(weight)
        codes = torch.randint(-128, 128, (m, k), dtype=torch.int8)
        scale = torch.rand(m) / 100 + 1e-4
        x = tile_rows(QuantizedRows(codes, scale, codes.sum(1, dtype=torch.int32)))
        bias = torch.randn(n).bfloat16()
        sums = codes.double() @ integers(form, weight).double().T
        scales = packed.scale[:n] * scale[:, None]
        want = (sums.float().double() * scales.double() + bias.double()).float().bfloat16()
        parts = torch.full(
            (max(1, cut_tiles * cuts) * variant.tokens * variant.rows,), -(2**31), dtype=torch.int32
        )
        arrived = torch.zeros(max(1, cut_tiles) * variant.panels * variant.slices, dtype=torch.int32)
        for _ in range(ORDERS):
            y = torch.full((m + 3, n), torch.nan, dtype=torch.bfloat16)
            inputs = (packed.tiles, x.codes, packed.offset, packed.scale, bias, x.row_sum, x.scale)
            tensors = (*inputs, y, parts, arrived)
            addresses = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
            getattr(library, f"run_{i}")(blocks, *addresses, m, n, -(-k // 128), cut_tiles, cuts)
            bad = (y[:m] != want).nonzero()
            assert not len(bad), (n, k, m, blocks, cut_tiles, cuts, len(bad), bad[:6].tolist())
            assert y[m:].isnan().all() and not arrived.any()
