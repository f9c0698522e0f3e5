"""Paged attention on the GPU against fp64 over K and V as stored."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from cuda_case import DTYPES, EPSILON, GPU, metadata, poison_allocator, randn, relative_rms, shuffled_tables
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tessera.kernels.cuda import attention
from tessera.kernels.cuda.attention import (
    BoundAttention,
    CudaAttention,
    Geometry,
    prefill_grid,
    tiles_per_block,
)
from tessera.kernels.cuda.target import device
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import AttentionProblem
from tessera.kernels.registry import Device
from tessera.kernels.types import AttentionMetadata
from tessera.numerics.qtensor import FLOATS
from tessera.numerics.rope import rotate
from tessera.spec import Chain

MAX_POSITION = 8192


class Case:
    """An attention layer, its cache full of NaN, and everything its sequences have brought so far."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, contexts: Sequence[int]
    ) -> None:
        self.heads, self.kv_heads, self.dim, self.dtype = heads, kv_heads, dim, dtype
        problem = AttentionProblem(device(), heads, kv_heads, dim, Chain(FLOATS[dtype]), dtype)
        angles = torch.rand(MAX_POSITION, dim // 2, device="cuda") * 6.28
        self.cos, self.sin = angles.cos(), angles.sin()
        self.bound: BoundAttention = CudaAttention("sm90", dtype).bind(problem, self.cos, self.sin)
        self.tables, pages = shuffled_tables(contexts)
        self.cache = self.bound.allocate(pages)
        self.cache.fill_(torch.nan)
        self.seen: list[Tensor] = [self._qkv(0) for _ in contexts]

    def _qkv(self, tokens: int) -> Tensor:
        return randn(tokens, (self.heads + 2 * self.kv_heads) * self.dim, dtype=self.dtype)

    def step(self, lengths: Sequence[int], padding: int = 0) -> tuple[Tensor, Tensor]:
        """Output of one step and what it should be; `padding` empty sequences of one token come last."""
        computed = [len(s) for s in self.seen] + [-1] * padding
        new = [self._qkv(n) for n in [*lengths, *[1] * padding]]
        self.seen = [torch.cat(pair) for pair in zip(self.seen, new, strict=False)]
        tables = torch.cat([self.tables, torch.full((padding, self.tables.shape[1]), 2**30)])
        meta = metadata(computed, [*lengths, *[1] * padding], tables)
        poison_allocator()
        got = self.bound(torch.cat(new), self.cache, meta)
        want = [self._attend(qkv, n) for qkv, n in zip(self.seen, lengths, strict=True)]
        zeros = torch.zeros(padding, self.heads * self.dim, device="cuda", dtype=torch.float64)
        return got, torch.cat([*want, zeros])

    def _attend(self, qkv: Tensor, last: int) -> Tensor:
        """fp64 attention of a sequence's last tokens; q and k are rounded after the rotation, as stored."""
        split = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = qkv.view(len(qkv), -1, self.dim).float().split(split, dim=1)
        cos, sin = self.cos[: len(qkv)], self.sin[: len(qkv)]
        q, k = (rotate(x, cos, sin).to(self.dtype).double() for x in (q, k))
        k, v = (x.double().repeat_interleave(self.heads // self.kv_heads, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[-last:], k) / self.dim**0.5
        positions = torch.arange(len(qkv), device="cuda")
        scores.masked_fill_(positions > positions[-last:, None], -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(last, -1)


def tolerance(dtype: torch.dtype) -> float:
    """Probabilities and the output are rounded once each (relative error uniform: EPSILON / sqrt 3 each);
    a factor of two for cancellation in the weighted sum.
    """
    return 2 * EPSILON[dtype]


def test_shared_memory_lets_two_blocks_share_an_h200() -> None:
    for dim in (64, 128):
        for group in (1, 8, 16):
            geometry = Geometry(dim, group, smem_per_sm=233472, smem_per_block=232448)
            assert 2 * (geometry.decode_smem + 1024 + 64) <= 233472
            assert geometry.prefill_smem <= 232448
            assert geometry.decode_stages >= 4
    small = Geometry(128, 16, smem_per_sm=102400, smem_per_block=101376)  # sm_86, sm_89
    assert small.decode_smem <= 101376 and small.prefill_stages >= 2


def test_tiles_per_block_weighs_start_against_waves() -> None:
    assert tiles_per_block(2048, pairs=64, pages=9, sms=132) == 16  # 8 prompts of 1024 tokens: a single wave
    assert tiles_per_block(256, pairs=8, pages=9, sms=132) == 2  # one: the same
    assert tiles_per_block(2048, pairs=256, pages=3, sms=132) == 8  # 32 of 256: a block for each pair
    assert tiles_per_block(56, pairs=8, pages=2, sms=132) == 1  # a short prompt needs every SM it can get


def test_prefill_has_blocks_for_all_tiles() -> None:
    """Whatever the lengths, also where none is as long as was said, or only decodes are there."""
    draw, none = random.Random(0), torch.empty(0)
    for _ in range(500):
        lengths = [draw.choice((1, draw.randint(1, 700))) for _ in range(draw.randint(1, 40))]
        group, kv_heads = draw.choice((1, 3, 4, 8, 16)), draw.randint(1, 32)
        longest = max(2, max(lengths) + draw.choice((0, 100)))
        meta = AttentionMetadata(none, none, none, torch.empty(len(lengths)), none, longest, longest + 300)
        blocks, depth = prefill_grid(sum(lengths), group, kv_heads, meta, sms=132)
        tiles = [-(-length * group // 128) for length in lengths]
        assert sum(-(-count // depth) for count in tiles) <= blocks
        assert blocks <= sum(tiles) // depth + 2 * len(lengths)


def test_says_what_it_cannot_do() -> None:
    kernel = CudaAttention("sm90", torch.bfloat16)
    h200 = Device("cuda", "sm_90a")
    chain = Chain(FLOATS[torch.bfloat16])

    def verdict(heads: int, kv_heads: int, dim: int, page: int = 64) -> str:
        problem = AttentionProblem(h200, heads, kv_heads, dim, chain, torch.bfloat16, page)
        return kernel.can_implement(problem).reason

    assert verdict(32, 8, 128) == "" and verdict(9, 3, 64) == ""
    assert "head_dim is 80" in verdict(32, 8, 80)
    assert "17 query heads on 1" in verdict(17, 1, 128)
    assert "32 query heads on 5" in verdict(32, 5, 128)
    assert "not 16" in verdict(32, 8, 128, page=16)


def test_refuses_tensors_that_do_not_fit() -> None:
    """By shape and type alone, so that fakes of a device's tensors do."""

    def fake(*shape: int, dtype: torch.dtype = torch.int32, device: str = "cuda") -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    with FakeTensorMode():
        slots = fake(5, dtype=torch.int64)
        good = AttentionMetadata(fake(5), slots, fake(3), fake(2), fake(2, 7), 4, 9)
        attention._check_metadata("k", good, 5)
        apart = torch.empty_strided((5,), (2,), dtype=torch.int64, device="cuda")
        for wrong in (
            {"positions": fake(4)}, {"positions": slots}, {"slot_mapping": apart}, {"cu_seqlens": fake(2)},
            {"block_tables": fake(1, 7)}, {"block_tables": fake(2)}, {"context_lens": fake(2, device="cpu")},
        ):  # fmt: skip
            (name,) = wrong
            with pytest.raises(KernelArgumentError, match=f"k: {name} must be"):
                attention._check_metadata("k", replace(good, **wrong), 5)
        page = (2, 2, 1, 64, 64)
        attention._check_cache("k", fake(3, *page, dtype=torch.float16), page, torch.float16)
        for bad in (fake(3, 1, *page[1:], dtype=torch.float16), fake(3, *page), fake(3, *page, device="cpu")):
            with pytest.raises(KernelArgumentError, match="k: cache must be what"):
                attention._check_cache("k", bad, page, torch.float16)


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", [64, 128])
    @pytest.mark.parametrize(
        ("heads", "kv_heads"), [(4, 4), (6, 2), (9, 3), (32, 8), (15, 3), (7, 1), (16, 2), (9, 1), (32, 2)]
    )
    def test_decode(self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        contexts = [1, 2, 16, 17, 63, 64, 65, 129, 500, 1000]
        case = Case(heads, kv_heads, dim, dtype, [c + 2 for c in contexts])
        got, want = case.step(contexts)
        assert relative_rms(got, want) < tolerance(dtype)
        for _ in range(2):
            got, want = case.step([1] * len(contexts), padding=3)
            assert relative_rms(got, want) < tolerance(dtype)
            assert torch.equal(got[len(contexts) :], torch.zeros_like(got[len(contexts) :]))

    @pytest.mark.parametrize("lengths", [[1], [64], [5000], [4000, 1], [1, 8000, 3], [300] * 300])
    def test_decode_split_over_blocks(self, lengths: list[int]) -> None:
        case = Case(8, 2, 128, torch.bfloat16, [n + 1 for n in lengths])
        case.step(lengths)
        got, want = case.step([1] * len(lengths))
        assert relative_rms(got, want) < tolerance(torch.bfloat16)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", [64, 128])
    @pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (32, 8), (7, 1), (16, 1)])
    def test_chunked_prefill_and_mixed_batches(
        self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
    ) -> None:
        steps = [[5, 200, 1, 64], [1, 130, 1, 2], [300, 1, 1, 65], [1, 1, 1, 257]]
        totals = [sum(column) for column in zip(*steps, strict=True)]
        case = Case(heads, kv_heads, dim, dtype, totals)
        for lengths in steps:
            got, want = case.step(lengths, padding=2)
            assert relative_rms(got, want) < tolerance(dtype)

    @pytest.mark.parametrize("depth", [1, 2, 4, 16])
    def test_prefill_blocks_of_several_tiles(self, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "tiles_per_block", lambda *sizes: depth)
        case = Case(8, 2, 128, torch.bfloat16, [1500, 330, 2, 700])
        for lengths in ([1200, 33, 1, 600], [300, 297, 1, 100]):
            got, want = case.step(lengths)
            assert relative_rms(got, want) < tolerance(torch.bfloat16)

    def test_pages_copied_by_lanes_as_below_sm_90(self, monkeypatch: pytest.MonkeyPatch) -> None:
        by_lanes = partial(attention.kernel, options=("-DTESSERA_NO_BULK_COPY",))
        monkeypatch.setattr(attention, "kernel", by_lanes)
        monkeypatch.setattr(BoundAttention, "on_hopper", False)
        case = Case(9, 3, 64, torch.bfloat16, [100, 300])
        for lengths in ([90, 1], [1, 290], [1, 1]):
            got, want = case.step(lengths, padding=1)
            assert relative_rms(got, want) < tolerance(torch.bfloat16)

    def test_scores_that_differ_widely(self) -> None:
        """One key of probability near 1 among thousands, in the first, a middle and the last page."""
        for place in (0, 2000, 4095):
            case = Case(4, 1, 128, torch.float16, [4097])
            case.cos.fill_(1)
            case.sin.fill_(0)
            case.bound.cos.fill_(1)
            case.bound.sin.fill_(0)
            case.step([4096])
            case.seen[0][place, 4 * 128 : 5 * 128] = 3
            page, row = case.tables[0, place // 64], place % 64
            case.cache[page, 0, 0, :, row] = 3
            got, want = case.step([1])
            assert relative_rms(got, want) < tolerance(torch.float16)

    def test_pages_of_others_are_left_alone(self) -> None:
        case = Case(8, 2, 64, torch.bfloat16, [100, 200])
        used = set(case.tables[case.tables < 2**30].tolist())
        case.step([90, 190])
        case.step([10, 10])
        for page in range(len(case.cache)):
            assert bool(case.cache[page].isnan().all()) == (page not in used)
