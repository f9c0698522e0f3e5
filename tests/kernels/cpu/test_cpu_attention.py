"""Compiled attention: float64 oracle over what the cache stores, any batch, any chunking, poisoned pages."""

import attention_case as case
import pytest
import torch
from cpu_cases import ARCHITECTURES

from tessera.kernels.cpu import library
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import ATTENTION, AttentionProblem
from tessera.kernels.registry import Device
from tessera.kernels.torch_ref.attention import KV4
from tessera.numerics import quantize_kv
from tessera.spec import BF16, F16, F32, Chain

CACHES = {"kv4": KV4, "f16": Chain(F16), "f32": Chain(F32)}
HEADS = [(9, 3, 64), (6, 2, 16), (4, 4, 32), (8, 1, 128), (5, 1, 80)]
STALE = 255
"""Bytes that make NaN of every parameter and float: what an unwritten slot may hold."""


def make(arch, kv, heads):
    problem = AttentionProblem(Device("cpu", arch), *heads, kv, torch.float32)
    cos, sin = case.tables(problem)
    return problem, ATTENTION.select(problem).bind(problem, cos, sin), cos, sin


def fill(bound, cache, s, x, chunks):
    """Runs a sequence's tokens in chunks that end at the given positions; outputs of all."""
    outputs, start = [], 0
    for stop in chunks:
        outputs.append(bound(x[start:stop], cache, case.metadata([(s, start, stop)])))
        start = stop
    return torch.cat(outputs)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("kv", CACHES)
def test_against_the_oracle(arch, kv, heads):
    problem, bound, cos, sin = make(arch, CACHES[kv], heads)
    sequences, pages = case.make_sequences([(0, 65), (63, 2), (64, 1), (130, 1), (0, 1)])
    cache = bound.allocate(pages)
    assert cache[0].nbytes == bound.bytes_per_page
    cache.fill_(STALE)
    inputs = [case.random_qkv(problem, s.length, i) for i, s in enumerate(sequences)]
    for s, x in zip(sequences, inputs, strict=True):
        if s.cached:
            fill(bound, cache, s, x, [s.cached])
    step = case.metadata([(s, s.cached, s.length) for s in sequences])
    new = torch.cat([x[s.cached :] for s, x in zip(sequences, inputs, strict=True)])
    expected = [case.oracle(problem, x, cos, sin)[s.cached :] for s, x in zip(sequences, inputs, strict=True)]
    # fp32 sums; minima act on scores, so their rounding is that of a sum over D, not of a difference
    assert case.relative_rms(bound(new, cache, step), torch.cat(expected)) < 5e-6


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kv", ["kv4", "f16"])
def test_a_row_does_not_depend_on_chunking_or_batch(arch, kv):
    problem, bound, _, _ = make(arch, CACHES[kv], (9, 3, 64))
    (s, other), pages = case.make_sequences([(0, 150), (0, 70)])
    x, y = case.random_qkv(problem, 150, 1), case.random_qkv(problem, 70, 2)
    whole = fill(bound, bound.allocate(pages), s, x, [150])
    for chunks in ([1, 2, 64, 65, 150], [37, 100, 150], list(range(1, 151))):
        assert torch.equal(fill(bound, bound.allocate(pages), s, x, chunks), whole)
    both = bound(torch.cat((y, x)), bound.allocate(pages), case.metadata([(other, 0, 70), (s, 0, 150)]))
    assert torch.equal(both[70:], whole)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kv", ["kv4", "f32"])
def test_long_contexts_are_split_without_a_trace(arch, kv):
    """Contexts of several segments: a few rows (segments apart) equal many (segments in turn) bit for bit."""
    problem, bound, cos, sin = make(arch, CACHES[kv], (6, 2, 32))
    (s, other), pages = case.make_sequences([(0, 1100), (0, 600)])
    x, y = case.random_qkv(problem, 1100, 1), case.random_qkv(problem, 600, 2)
    cache = bound.allocate(pages).fill_(STALE)
    whole = fill(bound, cache, s, x, [1100])
    assert case.relative_rms(whole, case.oracle(problem, x, cos, sin)) < 5e-6
    fill(bound, cache, other, y, [600])
    loaded = library.require(arch)
    try:
        for threads in (1, 2, 5):
            loaded.set_threads(threads)
            for start, stop in ((1099, 1100), (1022, 1027), (511, 514), (0, 1)):
                meta = case.metadata([(other, 599, 600), (s, start, stop)])
                out = bound(torch.cat((y[599:], x[start:stop])), cache, meta)
                assert torch.equal(out[1:], whole[start:stop])
    finally:
        loaded.set_threads(library.default_threads())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_results_do_not_depend_on_threads(arch):
    problem, bound, _, _ = make(arch, KV4, (6, 2, 32))
    (s,), pages = case.make_sequences([(0, 200)])
    x = case.random_qkv(problem, 200, 1)
    loaded = library.require(arch)
    results = []
    try:
        for threads in (1, 2, 5):
            loaded.set_threads(threads)
            cache = bound.allocate(pages)
            results.append((fill(bound, cache, s, x, [200]), cache))
    finally:
        loaded.set_threads(library.default_threads())
    for out, cache in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(cache, results[0][1])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_stored_codes_are_those_of_numerics(arch):
    """V of one token, read back from a page as documented in csrc/cpu/kv_page.h."""
    problem, bound, _, _ = make(arch, KV4, (2, 2, 32))
    (s,), pages = case.make_sequences([(0, 70)])
    cache = bound.allocate(pages)
    x = case.random_qkv(problem, 70, 3)
    fill(bound, cache, s, x, [70])
    for token, head in [(0, 0), (17, 1), (63, 0), (69, 1)]:
        values = x[token].view(6, 32)[4 + head]
        expected = quantize_kv(values)
        data = cache[s.pages[token // 64], head]
        slot = token % 64
        words = data[64 * 16 : 2 * 64 * 16].view(torch.int32).view(-1, 16)
        planes = [slot * 2, slot * 2 + 1]
        codes = torch.cat([words[p // 8] >> (p % 8 * 4) & 15 for p in planes])
        assert torch.equal(codes.to(torch.uint8), expected.codes)
        params = data[2 * 64 * 16 :].view(torch.float16).view(4, 64)[:, slot]
        assert params[2] == expected.scale and params[3] == expected.minimum


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_adversarial_inputs(arch):
    """Constant heads (maximum equals minimum), a huge channel, large scores, one token."""
    problem, bound, cos, sin = make(arch, KV4, (4, 2, 64))
    (s,), pages = case.make_sequences([(0, 90)])
    x = case.random_qkv(problem, 90, 4)
    heads = x.view(90, 8, 64)
    heads[5, 4:] = 0.25
    heads[6, 4:] = 0.0
    heads[7, 4, 3] = 1e3
    heads[8, :4] = 60.0
    cache = bound.allocate(pages).fill_(STALE)
    out = fill(bound, cache, s, x, [90])
    assert case.relative_rms(out, case.oracle(problem, x, cos, sin)) < 1e-4


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_not_a_number_stays_visible(arch):
    problem, bound, _, _ = make(arch, KV4, (2, 2, 32))
    (s,), pages = case.make_sequences([(0, 10)])
    x = case.random_qkv(problem, 10, 5)
    x.view(10, 6, 32)[4, 2, 7] = float("nan")  # a key of token 4, head 0
    out = fill(bound, bound.allocate(pages), s, x, [10]).view(10, 2, 32)
    assert out[:4].isfinite().all() and out[:, 1].isfinite().all()
    assert not out[4:, 0].isfinite().any()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_padding_stores_nothing(arch):
    problem, bound, _, _ = make(arch, KV4, (2, 1, 16))
    (s,), pages = case.make_sequences([(0, 3)])
    cache = bound.allocate(pages)
    meta = case.metadata([(s, 0, 3)])
    meta.slot_mapping[:] = -1
    bound(case.random_qkv(problem, 3, 6), cache, meta)
    assert not cache.any()


def test_contradictions_are_refused():
    problem, bound, _, _ = make(ARCHITECTURES[0], KV4, (2, 1, 16))
    (s,), pages = case.make_sequences([(0, 3)])
    cache, x = bound.allocate(pages), case.random_qkv(problem, 3, 7)

    def meta(**changes):
        m = case.metadata([(s, 0, 3)])
        for name, value in changes.items():
            getattr(m, name)[-1] = value
        return m

    for changes, message in [
        ({"positions": 4096}, "rotary tables"),
        ({"slot_mapping": pages * 64}, "slot_mapping points outside"),
        ({"block_tables": pages}, "block_tables name pages outside"),
        ({"cu_seqlens": 4}, "contradict"),
        ({"context_lens": 2}, "contradict"),
        ({"context_lens": 65}, "contradict"),
    ]:
        with pytest.raises(KernelArgumentError, match=message):
            bound(x, cache, meta(**changes))
    with pytest.raises(KernelArgumentError, match="qkv is"):
        bound(x[:, :-1], cache, meta())
    with pytest.raises(KernelArgumentError, match="cache is"):
        bound(x, cache[:, :, :-1], meta())
    with pytest.raises(KernelArgumentError, match=r"meta\.positions"):
        bound(x[:2], cache, meta())


def test_reasons_of_refusal():
    kernel = next(k for k in ATTENTION.kernels if k.id.startswith(f"cpu_{ARCHITECTURES[0]}_kv4_"))
    device = Device("cpu", ARCHITECTURES[0])

    def reason(head_dim=64, kv=KV4, page=64):
        return kernel.can_implement(AttentionProblem(device, 4, 2, head_dim, kv, torch.float32, page)).reason

    assert "head_dim 24" in reason(head_dim=24)
    assert "the cache is bf16" in reason(kv=Chain(BF16))
    assert "pages of 32" in reason(page=32)
    fallback = AttentionProblem(device, 4, 2, 24, KV4, torch.float32)
    assert ATTENTION.select(fallback).id == "torch_attention"
