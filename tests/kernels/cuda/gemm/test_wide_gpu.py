"""The wide GEMM against exact integers: every tile, split and format gives the same bits."""

import pytest
import torch

from kernels.cuda.cuda_case import DTYPES, GPU
from kernels.cuda.gemm.gemm_case import FORMS, expected, poisoned, rows, weights, wrong
from tessera.kernels.cuda.gemm import wide
from tessera.kernels.cuda.gemm.scratch import scratch
from tessera.kernels.cuda.gemm.wide import Variant

pytestmark = GPU


@pytest.mark.parametrize("variant", wide.VARIANTS, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 128), (7, 130, 200), (257, 1000, 1024), (300, 328, 8320)])
def test_sums_are_exact(variant: Variant, form: str, m: int, n: int, k: int) -> None:
    w = weights(n, k, form)
    for dtype in DTYPES:
        for sparse in (False, True):
            x, codes = rows(m, k, sparse=sparse)
            bias = torch.randn(n, device="cuda").to(dtype) if sparse else None
            y, memory = poisoned(m, n, dtype)
            wide.launch(variant, w.packed, x, y, bias, scratch(0))
            assert wrong(y, expected(w, x, codes, bias, dtype)) == 0
            assert memory[m:].isnan().all()
    assert not scratch(0).counters.any()


@pytest.mark.parametrize("form", FORMS)
def test_extreme_operands_at_the_longest_sum(form: str) -> None:
    k = wide.MAX_COLUMNS // 128 * 128
    w = weights(64, k, form, extreme=True)
    x, codes = rows(33, k, extreme=True)
    y, _ = poisoned(33, 64, torch.bfloat16)
    wide.launch(Variant(64, 2), w.packed, x, y, None, scratch(0))
    assert wrong(y, expected(w, x, codes, None, torch.bfloat16)) == 0


def test_a_graph_of_dependent_launches_gives_the_bits_of_single_ones() -> None:
    w = weights(1000, 2048, "g128")
    inputs = [rows(70, 2048)[0] for _ in range(2)]
    x, _ = rows(70, 2048)
    outs = [torch.empty(70, 1000, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    variants = [Variant(64, 4), Variant(32, 2, 1, True, 2), Variant(128, 2, 2), Variant(64, 2)]

    def step() -> None:
        for y, variant in zip(outs, variants, strict=True):
            wide.launch(variant, w.packed, x, y, None, scratch(0))

    def put(source: object) -> None:
        for name in ("codes", "scale", "row_sum"):
            getattr(x, name).copy_(getattr(source, name))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    wants = []
    for source in inputs:
        put(source)
        step()
        wants.append(outs[0].clone())
        assert all(torch.equal(y, wants[-1]) for y in outs)
    for turn in range(1000):
        put(inputs[turn % 2])
        for y in outs:
            y.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(y, wants[turn % 2]) for y in outs), turn
