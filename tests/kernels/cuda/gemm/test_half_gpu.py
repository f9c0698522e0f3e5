"""Products of int4 weights and 16-bit activations against fp64: every tile, cut, format and type.

A result may differ from fp64 by the rounding of y, at most u |y| with u the unit of the type (EPSILON):
relative RMS u / sqrt(3) at worst. `wide` also rounds each weight of a group to the type of x, and in bf16 the
scale before it; those are independent errors of u / sqrt(3) each. What fp32 sums lose is far below.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from kernels.cuda.cuda_case import DTYPES, EPSILON, GPU, randn, relative_rms
from tessera.kernels.cuda.gemm import half_small, half_wide, small
from tessera.kernels.cuda.gemm.half_choose import Choice
from tessera.kernels.cuda.gemm.half_weights import HalfWeights, pack
from tessera.kernels.cuda.gemm.scratch import scratch
from tessera.kernels.errors import KernelArgumentError
from tessera.numerics import QTensor, plain
from tessera.spec import Chain, Pattern, Qtile, affine_zero

pytestmark = GPU

Variant = half_wide.Variant | small.Variant
WIDE, SMALL = half_wide.VARIANTS, half_small.VARIANTS
GUARD = 3
"""Rows behind the output that must stay as they were."""
CHAINS = {
    **{f"g{g}": affine_zero(4, Pattern.blocks(1, g, ragged=True)) for g in (32, 64, 128)},
    "chn": affine_zero(4, Pattern.channel()),
}


def weights(n: int, k: int, chain: Chain) -> tuple[HalfWeights, Tensor]:
    """Packed, and the values in fp64."""
    tile = Qtile((n, k), chain)
    params = {}
    for name, t in tile.param_tiles().items():
        scale = (torch.rand(t.shape, device="cuda") * 0.9 + 0.1).half() / 64
        zero = torch.randint(0, 16, t.shape, dtype=torch.uint8, device="cuda")
        params[name] = plain(scale if name == "scale" else zero, t.chain)
    q = QTensor(tile, torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda"), params)
    return pack(q), q.dequantize(torch.float64)


def bound(variant: Variant, dtype: torch.dtype, form: str) -> float:
    errors = 1 + (variant in WIDE and form != "chn") * (1 + (dtype == torch.bfloat16))
    return float(EPSILON[dtype] * (errors / 3) ** 0.5)


def launch(variant: Variant, w: HalfWeights, x: Tensor, y: Tensor, bias: Tensor | None = None) -> None:
    Choice(variant).launch(w, x, y, bias, scratch(0))


def run(variant: Variant, w: HalfWeights, x: Tensor, bias: Tensor | None = None) -> Tensor:
    tokens, n = x.shape[0], w.tile.shape[0]
    memory = torch.full((tokens + GUARD, n), float("nan"), dtype=x.dtype, device="cuda")
    launch(variant, w, x, memory[:tokens], bias)
    assert memory[tokens:].isnan().all()
    return memory[:tokens]


@pytest.mark.parametrize("variant", SMALL + WIDE, ids=str)
@pytest.mark.parametrize("form", CHAINS)
@pytest.mark.parametrize(("n", "k"), [(130, 200), (1000, 640), (328, 8320)])
def test_every_variant_is_right_and_repeats_its_bits(variant: Variant, form: str, n: int, k: int) -> None:
    w, values = weights(n, k, CHAINS[form])
    for dtype in DTYPES:
        for tokens in (1, 7, 30, 257):
            x = randn(tokens, k, dtype=dtype)
            bias = randn(n, dtype=dtype) if tokens % 2 else None
            want = x.double() @ values.T + (0 if bias is None else bias.double())
            y = run(variant, w, x, bias)
            assert relative_rms(y, want) < bound(variant, dtype, form), (dtype, tokens)
            assert torch.equal(y, run(variant, w, x, bias))
    assert not scratch(0).counters.any()


@pytest.mark.parametrize(
    "variant",
    [
        SMALL[0],
        small.Variant(16, panels=2, strips=2, smem=small.WHOLE_SM),
        half_wide.Variant(64, 128, halves=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["g128", "chn"])
def test_a_mean_and_outliers_in_x_cost_no_accuracy(variant: Variant, form: str) -> None:
    """Zero points are taken off sums of codes: what cancels there must not drown the result."""
    w, values = weights(512, 4096, CHAINS[form])
    for dtype in DTYPES:
        x = randn(8, 4096, dtype=dtype) + 3
        x[:, 77] = 1000
        y = run(variant, w, x)
        assert relative_rms(y, x.double() @ values.T) < bound(variant, dtype, form) + 2**-13


def test_codes_alone_are_exact() -> None:
    """With scales of 1, x of small whole numbers and sums below 2^11 nothing rounds anywhere."""
    tile = Qtile((256, 1024), CHAINS["g64"])
    ones = {"scale": torch.ones(256, 16).half(), "zero": torch.randint(0, 16, (256, 16), dtype=torch.uint8)}
    params = {name: plain(ones[name].cuda(), t.chain) for name, t in tile.param_tiles().items()}
    q = QTensor(tile, torch.randint(0, 16, (256, 1024), dtype=torch.uint8, device="cuda"), params)
    w, values = pack(q), q.dequantize(torch.float64)
    x = torch.zeros(40, 1024, device="cuda")
    x.scatter_(1, torch.randint(0, 1024, (40, 8), device="cuda"), 1.0)
    for dtype in DTYPES:
        for variant in SMALL + WIDE:
            y = run(variant, w, x.to(dtype))
            assert torch.equal(y.double(), x.double() @ values.T), (dtype, str(variant))


def test_infinite_tokens_stay_alone() -> None:
    w, values = weights(200, 200, CHAINS["g32"])
    for variant in SMALL + WIDE:
        x = randn(20, 200, dtype=torch.bfloat16)
        x[3] = float("inf")
        y = run(variant, w, x)
        others = [t for t in range(20) if t != 3]
        assert relative_rms(y[others], (x.double() @ values.T)[others]) < 2**-7, str(variant)


def test_wrong_arguments_are_refused() -> None:
    w, _ = weights(64, 128, CHAINS["g32"])
    x, y = randn(3, 128, dtype=torch.bfloat16), randn(3, 64, dtype=torch.bfloat16)
    for bad_x, bad_y, bias, name in (
        (x[:, :64], y, None, "x"),
        (x, y.half(), None, "y"),
        (x, y[:2], None, "y"),
        (x, y, y[0, :63], "bias"),
    ):
        with pytest.raises(KernelArgumentError, match=f": {name} must be"):
            half_wide.launch(WIDE[0], w, bad_x, bad_y, bias, scratch(0))
        with pytest.raises(KernelArgumentError, match=f": {name} must be"):
            half_small.launch(SMALL[0], w, bad_x, bad_y, bias, scratch(0))


def test_a_graph_of_dependent_launches_gives_the_bits_of_single_ones() -> None:
    w, _ = weights(1024, 1024, CHAINS["g128"])
    inputs = [randn(16, 1024, dtype=torch.bfloat16) for _ in range(2)]
    x = inputs[0].clone()
    variants = [SMALL[0], half_wide.Variant(32, 256), SMALL[-1], *SMALL, half_wide.Variant(128, 192)]
    outs = [torch.empty_like(x) for _ in variants]

    def step() -> None:
        """Each takes what the one before it put out."""
        given = x
        for y, variant in zip(outs, variants, strict=True):
            launch(variant, w, given, y)
            given = y

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    wants = []
    for source in inputs:
        x.copy_(source)
        step()
        torch.cuda.synchronize()
        wants.append([y.clone() for y in outs])
    for turn in range(1000):
        x.copy_(inputs[turn % 2])
        for y in outs:
            y.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, outs, wants[turn % 2])), turn


@pytest.fixture
def copied_by_lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels whose producer copies with cp.async, as below sm_90."""
    half_small.instance.cache_clear()
    options = ("-DTESSERA_NO_BULK_COPY",)
    monkeypatch.setattr(half_small, "kernel", partial(half_small.kernel, options=options))
    yield
    half_small.instance.cache_clear()


@pytest.mark.usefixtures("copied_by_lanes")
@pytest.mark.parametrize("variant", half_small.ANYWHERE, ids=str)
def test_copied_by_lanes_as_below_sm_90(variant: small.Variant) -> None:
    for form in ("g64", "chn"):
        w, values = weights(330, 520, CHAINS[form])
        for tokens in (1, 16, 130):
            x = randn(tokens, 520, dtype=torch.bfloat16)
            y = run(variant, w, x)
            assert relative_rms(y, x.double() @ values.T) < bound(variant, torch.bfloat16, form)


@pytest.mark.parametrize("blocks", [1, 2, 29, 131, 132])
def test_pieces_of_every_length(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of up to as many blocks as there are, added in the order of K whoever comes last."""
    monkeypatch.setattr(half_small, "grid", lambda n, k, tokens, *_: min(blocks, -(-n // 256) * -(-k // 128)))
    for n, k in ((200, 8192), (4096, 640)):
        w, values = weights(n, k, CHAINS["g64"])
        x = randn(5, k, dtype=torch.float16)
        for variant in SMALL:
            first = run(variant, w, x)
            assert relative_rms(first, x.double() @ values.T) < bound(variant, torch.float16, "g64")
            for _ in range(5):
                assert torch.equal(run(variant, w, x), first), str(variant)
            assert not scratch(0).counters.any()


@pytest.mark.parametrize("variant", WIDE, ids=str)
def test_cut_tiles_of_many_tokens(variant: half_wide.Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shared by 2 to 17 blocks along K, whole tiles behind them, and one tile that is left alone."""
    w, values = weights(520, 4352, CHAINS["g64"])
    tokens = variant.tokens + 3
    x = randn(tokens, 4352, dtype=torch.bfloat16)
    tiles = -(-520 // variant.rows) * 2
    want = x.double() @ values.T
    for cuts in (2, 3, 6, 17):
        for cut_tiles in (1, tiles):
            grid = max(cut_tiles * cuts, 1)
            if grid > 132:
                continue
            made = half_wide.Plan(grid, cut_tiles, cuts, 0)
            monkeypatch.setattr(half_wide, "plan", lambda *_, made=made: made)
            first = run(variant, w, x)
            assert relative_rms(first, want) < bound(variant, torch.bfloat16, "g64")
            for _ in range(5):
                assert torch.equal(run(variant, w, x), first), (cuts, cut_tiles)
    assert not scratch(0).counters.any()
