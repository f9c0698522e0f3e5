"""The GEMM for few tokens against exact integers: every tile, slice, grid and format gives the same bits."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from kernels.cuda.cuda_case import DTYPES, GPU
from kernels.cuda.gemm.gemm_case import FORMS, expected, line, poisoned, rows, weights, wrong
from tessera.kernels.cuda.gemm import small
from tessera.kernels.cuda.gemm.scratch import scratch
from tessera.kernels.cuda.gemm.small import Variant
from tessera.kernels.cuda.gemm.weights import Format

pytestmark = GPU


@pytest.mark.parametrize("variant", small.VARIANTS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_sums_are_exact(variant: Variant, form: str) -> None:
    for n, k in ((64, 128), (130, 384), (1000, 1152), (2048, 4096)):
        w = weights(n, k, form)
        for m in {1, variant.tokens - 1, variant.tokens}:
            for dtype, sparse in zip(DTYPES, (False, True), strict=True):
                x, codes = rows(m, k, sparse=sparse)
                bias = torch.randn(n, device="cuda").to(dtype) if sparse else None
                y, memory = poisoned(m, n, dtype)
                small.launch(variant, w.packed, x, y, bias, scratch(0))
                assert wrong(y, expected(w, x, codes, bias, dtype)) == 0, (n, k, m)
                assert memory[m:].isnan().all()
    assert not scratch(0).counters.any()


@pytest.mark.parametrize("tokens", [30, 257])
def test_more_tokens_than_a_tile_holds(tokens: int) -> None:
    cases = (("g128", Variant(8)), ("chn", Variant(16)), ("w8", Variant(48, 2, 2, 2, small.WHOLE_SM)))
    for form, variant in cases:
        w, (x, codes) = weights(330, 512, form), rows(tokens, 512)
        y, memory = poisoned(tokens, 330, torch.bfloat16)
        small.launch(variant, w.packed, x, y, None, scratch(0))
        assert wrong(y, expected(w, x, codes, None, torch.bfloat16)) == 0
        assert memory[tokens:].isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_extreme_operands_at_the_longest_sum(form: str) -> None:
    w, (x, codes) = weights(64, 65_664, form, extreme=True), rows(7, 65_664, extreme=True)
    y, _ = poisoned(7, 64, torch.bfloat16)
    small.launch(Variant(8), w.packed, x, y, None, scratch(0))
    assert wrong(y, expected(w, x, codes, None, torch.bfloat16)) == 0


@pytest.fixture
def copied_by_lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels whose producer copies with cp.async, as below sm_90."""
    small.instance.cache_clear()
    monkeypatch.setattr(small, "kernel", partial(small.kernel, options=("-DTESSERA_NO_BULK_COPY",)))
    yield
    small.instance.cache_clear()


@pytest.mark.usefixtures("copied_by_lanes")
@pytest.mark.parametrize("variant", small.ANYWHERE, ids=str)
def test_copied_by_lanes_as_below_sm_90(variant: Variant) -> None:
    for form in ("g64", "w8"):
        for n, k, m in ((64, 128, 1), (1000, 1152, variant.tokens), (330, 512, 130)):
            w, (x, codes) = weights(n, k, form), rows(m, k)
            y, _ = poisoned(m, n, torch.bfloat16)
            small.launch(variant, w.packed, x, y, None, scratch(0))
            assert wrong(y, expected(w, x, codes, None, torch.bfloat16)) == 0


@pytest.mark.parametrize("blocks", [1, 2, 5, 29, 131, 132])
def test_pieces_of_every_length(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than units: a block beyond the line counts itself where no one comes last."""

    def grid(n: int, k: int, tokens: int, sms: int, variant: Variant, form: Format) -> int:
        return min(blocks, line(variant, n, k, tokens)[0])

    monkeypatch.setattr(small, "grid", grid)
    for n, k in ((200, 4096), (4096, 640)):
        w, (x, codes) = weights(n, k, "g64"), rows(23, k)
        for variant in (
            Variant(32, slices=4, smem=small.WHOLE_SM),
            Variant(8),
            Variant(32, 4, 2, 1, small.WHOLE_SM),
        ):
            y, _ = poisoned(23, n, torch.float16)
            small.launch(variant, w.packed, x, y, None, scratch(0))
            assert wrong(y, expected(w, x, codes, None, torch.float16)) == 0, (n, k, str(variant))
            assert not scratch(0).counters.any(), (n, k, str(variant))


def test_a_graph_of_dependent_launches_gives_the_bits_of_single_ones() -> None:
    """Launches of which each starts while the one before it ends, over the same scratch and output."""
    w = weights(1000, 2048, "g128")
    inputs = [rows(13, 2048)[0] for _ in range(2)]
    x, _ = rows(13, 2048)
    variants = [v for v in small.VARIANTS if v.tokens == 16] * 2
    outs = [torch.empty(13, 1000, dtype=torch.bfloat16, device="cuda") for _ in variants]

    def step() -> None:
        for y, variant in zip(outs, variants, strict=True):
            small.launch(variant, w.packed, x, y, None, scratch(0))

    def put(turn: int) -> None:
        for name in ("codes", "scale", "row_sum"):
            getattr(x, name).copy_(getattr(inputs[turn], name))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    wants = []
    for turn in range(2):
        put(turn)
        step()
        torch.cuda.synchronize()
        wants.append(outs[0].clone())
        assert all(torch.equal(y, wants[-1]) for y in outs)
    bad = torch.zeros((), dtype=torch.int64, device="cuda")
    for replay in range(1000):
        put(replay % 2)
        for y in outs:
            y.fill_(float("nan"))
        graph.replay()
        for y in outs:
            bad += (y != wants[replay % 2]).any()
    assert bad.item() == 0 and not scratch(0).counters.any()
