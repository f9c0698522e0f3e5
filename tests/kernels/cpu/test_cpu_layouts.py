"""Layouts: unpack undoes pack, unsafe codes are refused, tied weights are packed once."""

import gc
import weakref

import pytest
import torch
from cpu_cases import recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.kernels.cpu import memory
from tessera.kernels.cpu.layouts import FORMATS, format_of, packed
from tessera.kernels.errors import KernelArgumentError
from tessera.numerics import QTensor, plain, quantize
from tessera.spec import F32, U8, Pattern, affine_min, symmetric

CHAINS = {
    "w8": recipe_of("w8a8-chn").weight_chain(),
    "w4_progressive": recipe_of("w4a8-g32").weight_chain(),
    "w4_zero_channel": recipe_of("w4a16-chn").weight_chain(),
    "w4_zero": recipe_of("w4a16-g64").weight_chain(),
    "w4_min": affine_min(4, Pattern.blocks(1, 32, ragged=True)),
}


def same(a, b):
    return (
        a.tile == b.tile
        and torch.equal(a.codes, b.codes)
        and a.params.keys() == b.params.keys()
        and all(same(a.params[name], b.params[name]) for name in a.params)
    )


@pytest.mark.parametrize("name", CHAINS)
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 150), seed=st.integers(0, 1000))
def test_unpack_undoes_pack(name, n, k, seed):
    weight = quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(seed)), CHAINS[name])
    assert format_of(weight.chain) == name
    layout = FORMATS[name][0]
    assert same(layout.unpack(layout.pack(weight)), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unpack_undoes_pack_of_floats(dtype):
    weight = plain(torch.randn(19, 7).to(dtype))
    layout = FORMATS["floats"][0]
    assert same(layout.unpack(layout.pack(weight)), weight)


def test_layout_of_a_byte_is_as_documented():
    """Row n, column k of 8-bit codes: block n / 16, then k / 4, then n % 16, then k % 4."""
    weight = quantize(torch.randn(32, 12), CHAINS["w8"])
    codes = packed(weight).codes
    for n, k in [(0, 0), (5, 7), (17, 11), (31, 2)]:
        assert int(codes[n // 16, k // 4, n % 16, k % 4]) == int(weight.codes[n, k]) + 128


def test_protective_range_is_asserted_naming_the_group():
    weight = quantize(torch.randn(4, 96), CHAINS["w4_progressive"])
    weight.params["group_scale"].codes[2, 1] = 16  # the group [-119, 114]: code 15 decodes to 128
    weight.params["group_zero"].codes[2, 1] = 7
    weight.codes[2, 40] = 15
    with pytest.raises(KernelArgumentError, match=r"row 2, group 1 .* codes \d\.\.15, outside 0\.\.14: "):
        packed(weight)


def test_a_group_scale_of_zero_holds_every_code():
    weight = quantize(torch.randn(4, 96), CHAINS["w4_progressive"])
    weight.params["group_scale"].codes[2, 1] = 0
    assert same(FORMATS["w4_progressive"][0].unpack(packed(weight)), weight)


def test_tied_weights_are_packed_once_and_freed():
    weight = quantize(torch.randn(16, 16), CHAINS["w8"])
    first = packed(weight)
    assert packed(weight) is first
    assert packed(QTensor(weight.tile, weight.codes, weight.params)) is first
    assert packed(quantize(torch.randn(16, 16), CHAINS["w8"])) is not first
    other = quantize(torch.randn(16, 16), CHAINS["w8"])
    assert not torch.equal(
        packed(QTensor(weight.tile, weight.codes, other.params)).params["scale"], first.params["scale"]
    )
    reference = weakref.ref(first)
    del first
    gc.collect()
    assert reference() is None
    again = packed(weight)
    assert same(FORMATS["w8"][0].unpack(again), weight)


def test_formats_without_layout_are_refused():
    chain = symmetric(U8, Pattern.channel(), F32)
    assert format_of(chain) is None
    with pytest.raises(KernelArgumentError, match="no CPU layout"):
        packed(quantize(torch.rand(4, 8), chain))


def test_memory_is_aligned_zeroed_and_kept_by_its_tensors():
    a = memory.resident(torch.arange(100, dtype=torch.int32).view(10, 10).T)
    b = memory.resident(torch.ones(3))
    assert a.data_ptr() % 64 == 0 and b.data_ptr() % 64 == 0
    assert a.is_contiguous() and int(a[3, 4]) == 43
    large = memory.zeros(3, 1 << 20, dtype=torch.int16)
    assert large.data_ptr() % memory.HUGE_PAGE == 0 and not large.any()
    view = b[1:]
    del a, b
    gc.collect()
    for _ in range(50):
        memory.resident(torch.zeros(1000))
    assert view.tolist() == [1.0, 1.0]
    assert memory.zeros(0, 4, dtype=torch.uint8).shape == (0, 4)
