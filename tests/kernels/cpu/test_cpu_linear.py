"""Compiled linear layers: bit-equal to exact integers, or within rounding of float64; rows independent."""

import pytest
import torch
from cpu_cases import ARCHITECTURES, bind, linear_case, recipe_of, rows, some_rows

from tessera.kernels import torch_ref
from tessera.kernels.cpu import library
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LINEAR, LinearProblem
from tessera.kernels.registry import Device, runs
from tessera.numerics import QTensor, plain, quantize
from tessera.spec import A32, F16, LinearSpec, Pattern, Qtile, affine_min, symmetric

INTEGER = ["w4a8-g32", "w4a8-g64", "w4a8-g128", "w4a8-chn", "w8a8-chn"]
FLOAT = ["w4a16-g32", "w4a16-g128", "w4a16-chn", "w8a16-chn"]
SIZES = [(48, 64), (33, 316), (130, 576)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("text", INTEGER)
def test_integer_layers_are_bit_exact(arch, text, size):
    problem, weight, bias, x = linear_case(arch, recipe_of(text), *size, tokens=30)
    bound = bind(problem, weight, bias)
    assert bound.kernel_id.startswith(f"cpu_{arch}_w")
    assert torch.equal(bound(x), torch_ref.INT_LINEAR.bind(problem, weight, bias)(x))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("text", INTEGER)
def test_largest_sums_do_not_saturate(arch, text):
    """Codes and activations at their extremes, of one sign: what overflows int16 pairs in naive kernels."""
    problem, weight, _, _ = linear_case(arch, recipe_of(text), 32, 512, tokens=1)
    integers = torch.zeros(32, 512)
    integers[:16], integers[16:] = 1e3, -1e3
    weight = quantize(integers, weight.chain)
    x = rows(torch.cat((torch.full((8, 512), 3.0), torch.full((8, 512), -3.0))))
    expected = torch_ref.INT_LINEAR.bind(problem, weight, None)(x)
    assert torch.equal(bind(problem, weight, None)(x), expected)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("text", FLOAT)
def test_float_layers_against_float64(arch, text, size):
    problem, weight, bias, x = linear_case(arch, recipe_of(text), *size, tokens=7)
    expected = x.double() @ weight.dequantize(torch.float64).T + bias
    error = (bind(problem, weight, bias)(x) - expected).norm() / expected.norm()
    assert error < 3e-6  # a chain of K <= 576 roundings of 2^-24 each, random in sign: about sqrt(K) * 2^-24


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_weights_against_float64(arch, dtype):
    torch.manual_seed(0)
    weight, x = plain(torch.randn(50, 100).to(dtype)), torch.randn(5, 100)
    problem = LinearProblem(Device("cpu", arch), LinearSpec(50, 100, weight.chain, A32))
    expected = x.double() @ weight.dequantize(torch.float64).T
    assert (bind(problem, weight, None)(x) - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_groups_with_a_minimum_against_float64(arch):
    torch.manual_seed(0)
    weight = quantize(torch.randn(40, 96) + 0.5, affine_min(4, Pattern.blocks(1, 32)))
    x = torch.randn(6, 96)
    problem = LinearProblem(Device("cpu", arch), LinearSpec(40, 96, weight.chain, A32))
    expected = x.double() @ weight.dequantize(torch.float64).T
    assert (bind(problem, weight, None)(x) - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("text", ["w4a8-g64", "w4a8-chn", "w8a8-chn", "w4a16-g64", "w8a16-chn"])
def test_a_row_does_not_depend_on_its_batch(arch, text):
    problem, weight, bias, x = linear_case(arch, recipe_of(text), 200, 192, tokens=201)
    bound = bind(problem, weight, bias)
    whole = bound(x)
    order = torch.randperm(201)
    assert torch.equal(bound(some_rows(x, order)), whole[order])
    for count in (1, 2, 3, 5, 9, 12, 17, 97):
        part = torch.arange(count)
        assert torch.equal(bound(some_rows(x, part)), whole[:count])


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("text", ["w4a8-g64", "w4a16-g64"])
def test_results_do_not_depend_on_threads(arch, text):
    problem, weight, bias, x = linear_case(arch, recipe_of(text), 960, 128, tokens=130)
    bound = bind(problem, weight, bias)
    loaded = library.require(arch)
    results = []
    try:
        for threads in (1, 2, 5):
            loaded.set_threads(threads)
            results.append((bound(x), bound(some_rows(x, torch.arange(1)))))
    finally:
        loaded.set_threads(library.default_threads())
    for many, one in results[1:]:
        assert torch.equal(many, results[0][0])
        assert torch.equal(one, results[0][1])


def test_runs_are_counted_and_empty_steps_allowed():
    problem, weight, bias, x = linear_case(ARCHITECTURES[0], recipe_of("w4a8-g64"), 32, 64, tokens=3)
    bound = bind(problem, weight, bias)
    before = runs[bound.kernel_id]
    assert bound(some_rows(x, torch.arange(0))).shape == (0, 32)
    assert runs[bound.kernel_id] == before + 1


def test_arguments_are_checked_by_name():
    problem, weight, bias, x = linear_case(ARCHITECTURES[0], recipe_of("w8a8-chn"), 32, 64, tokens=3)
    bound = bind(problem, weight, bias)
    with pytest.raises(KernelArgumentError, match=r"w8a8_linear-n16k4-v1: x\.codes is .*\[3, 32\]"):
        bound(rows(torch.randn(3, 32)))
    with pytest.raises(KernelArgumentError, match=r"x\.scale"):
        bound(type(x)(x.codes, x.scale[:2], x.row_sum))
    with pytest.raises(KernelArgumentError, match="strided"):
        bound(type(x)(x.codes.repeat(1, 2)[:, ::2], x.scale, x.row_sum))
    with pytest.raises(KernelArgumentError, match="float tensor"):
        bound(torch.randn(3, 64))
    problem, weight, bias, x = linear_case(ARCHITECTURES[0], recipe_of("w4a16-g32"), 32, 64, tokens=3)
    floats = bind(problem, weight, bias)
    with pytest.raises(KernelArgumentError, match="QuantizedRows"):
        floats(rows(x))
    with pytest.raises(KernelArgumentError, match="float16"):
        floats(x.half())


def test_reasons_of_refusal():
    device = Device("cpu", ARCHITECTURES[0])
    half = LinearSpec(16, 64, symmetric(*_w8()), A32, output=F16)
    reasons = [k.can_implement(LinearProblem(device, half)).reason for k in LINEAR.kernels]
    assert any("puts out float32" in r for r in reasons)
    elsewhere = LinearProblem(Device("cuda", "sm_90a"), LinearSpec(16, 64, symmetric(*_w8()), A32))
    cpu_kernels = [k for k in LINEAR.kernels if k.id.startswith(("cpu_", "torch_"))]
    assert not any(k.can_implement(elsewhere).ok for k in cpu_kernels)


def _w8():
    chain = recipe_of("w8a8-chn").weight_chain()
    return chain.codes, chain.steps[0].pattern


def test_packed_weights_of_a_layer_go_with_it():
    """`nbytes` counts codes and parameters once, at their packed size."""
    problem, weight, _, _ = linear_case(ARCHITECTURES[0], recipe_of("w4a8-g64"), 64, 128, tokens=1)
    bound = bind(problem, weight, None)
    codes, groups, scales = 64 * 128 // 2, 2 * 64 * 2, 64 * 2
    assert codes + groups + scales <= bound.nbytes <= codes + groups + scales + 64 * 4
    assert isinstance(weight, QTensor) and weight.tile == Qtile((64, 128), weight.chain)
