"""Torch kernels against numerics and float64 oracles."""

import attention_case as case
import pytest
import torch

from tessera.kernels import cpu
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import AttentionProblem, EmbeddingProblem, LinearProblem, RowsProblem
from tessera.kernels.torch_ref.attention import KV4, TorchAttention
from tessera.kernels.torch_ref.embedding import TorchEmbedding
from tessera.kernels.torch_ref.linear import TorchFloatLinear, TorchIntLinear, integer_matmul
from tessera.kernels.torch_ref.rows import TorchNorm, TorchQuantizeRows, TorchSiluMul
from tessera.kernels.types import QuantizedRows
from tessera.numerics import plain, quantize, quantize_rows
from tessera.spec import E4M3, F16, F32, Chain, LinearSpec, Recipe

DEVICE = cpu.device()


def rows(x):
    return QuantizedRows(*quantize_rows(x))


def chains(text):
    recipe = Recipe.parse(text)
    return recipe.weight_chain(), recipe.activation_chain()


def problem_of(recipe, n, k):
    return LinearProblem(DEVICE, LinearSpec(n, k, recipe.weight_chain(), recipe.activation_chain()))


@pytest.mark.parametrize("text", ["w4a8-g32", "w4a8-g128", "w4a8-chn", "w8a8-chn"])
def test_integer_linear_is_exact(text):
    torch.manual_seed(0)
    recipe = Recipe.parse(text, ragged_tail=text == "w4a8-g128")
    weight = quantize(torch.randn(33, 320), recipe.weight_chain())
    bias = torch.randn(33)
    x = rows(torch.randn(7, 320))
    problem = problem_of(recipe, 33, 320)
    assert TorchIntLinear().can_implement(problem).ok
    y = TorchIntLinear().bind(problem, weight, bias)(x)
    scale = weight.params["scale"].dequantize(torch.float64).flatten()
    integers = (weight.dequantize(torch.float64) / scale.unsqueeze(-1)).round().long()
    acc = x.codes.long() @ integers.T
    assert torch.equal(y, acc.float() * x.scale.unsqueeze(-1) * scale.float() + bias)


def test_integer_matmul_holds_the_largest_sums():
    x = torch.full((2, 4097), -127, dtype=torch.int8)
    w = torch.full((3, 4097), -128, dtype=torch.int8)
    assert torch.equal(integer_matmul(x, w), torch.full((2, 3), 4097 * 127 * 128, dtype=torch.int32))


def test_linears_refuse_the_other_kind_of_rows():
    recipe = Recipe.parse("w8a8-chn")
    weight = quantize(torch.randn(16, 32), recipe.weight_chain())
    integer = TorchIntLinear().bind(problem_of(recipe, 16, 32), weight, None)
    floats = TorchFloatLinear().bind(problem_of(Recipe.parse("w8a16-chn"), 16, 32), weight, None)
    with pytest.raises(KernelArgumentError, match="torch_int_linear: x"):
        integer(torch.randn(1, 32))
    with pytest.raises(KernelArgumentError, match="torch_float_linear: x"):
        floats(rows(torch.randn(1, 32)))


def test_verdicts_name_the_reason():
    long = LinearProblem(DEVICE, LinearSpec(16, 200_000, *chains("w8a8-chn")))
    assert "overflows int32" in TorchIntLinear().can_implement(long).reason
    floats = LinearProblem(DEVICE, LinearSpec(16, 32, *chains("w4a16-g32")))
    assert "not int8" in TorchIntLinear().can_implement(floats).reason
    integers = LinearProblem(DEVICE, LinearSpec(16, 32, *chains("w8a8-chn")))
    assert "not floats" in TorchFloatLinear().can_implement(integers).reason


@pytest.mark.parametrize("residual", [False, True])
def test_norm_silu_and_quantize_rows(residual):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64), torch.rand(64)
    other = torch.randn(5, 64) if residual else None
    y, total = TorchNorm().bind(RowsProblem(DEVICE, 64, torch.float32, False), weight, 1e-5)(x, other)
    assert torch.equal(total, x + other if residual else x)
    wide = total.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert case.relative_rms(y, expected) < 1e-6
    quantizing = RowsProblem(DEVICE, 64, torch.float32, True)
    codes, _ = TorchNorm().bind(quantizing, weight, 1e-5)(x, other)
    assert torch.equal(codes.codes, rows(y).codes)
    gate, up = x.double().chunk(2, -1)
    half = RowsProblem(DEVICE, 32, torch.float32, False)
    assert case.relative_rms(TorchSiluMul().bind(half)(x), gate * gate.sigmoid() * up) < 1e-6
    assert torch.equal(TorchQuantizeRows().bind(quantizing)(x).codes, rows(x).codes)


@pytest.mark.parametrize("quantized", [False, True])
def test_embedding_takes_rows(quantized):
    floats = torch.randn(40, 24)
    table = quantize(floats, Recipe.parse("w8a8-chn").weight_chain()) if quantized else plain(floats)
    problem = EmbeddingProblem(DEVICE, 40, 24, table.chain, torch.float32)
    ids = torch.tensor([3, 39, 0, 3], dtype=torch.int32)
    assert torch.equal(TorchEmbedding().bind(problem, table)(ids), table.dequantize()[ids.long()])


def test_attention_holds_no_floats_that_torch_has_not():
    problem = AttentionProblem(DEVICE, 6, 2, 16, Chain(E4M3), torch.float32)
    assert "the cache is f8e4m3" in TorchAttention().can_implement(problem).reason


@pytest.mark.parametrize("kv", [KV4, Chain(F16), Chain(F32)], ids=["kv4", "f16", "f32"])
def test_attention_against_the_oracle(kv):
    problem = AttentionProblem(DEVICE, 6, 2, 16, kv, torch.float32)
    cos, sin = case.tables(problem)
    bound = TorchAttention().bind(problem, cos, sin)
    sequences, pages = case.make_sequences([(0, 65), (63, 2), (130, 1)])
    cache = bound.allocate(pages)
    assert cache[0].nbytes == bound.bytes_per_page
    cache.fill_(255)  # NaN in every parameter: unwritten slots must not matter
    inputs = [case.random_qkv(problem, s.length, i) for i, s in enumerate(sequences)]
    for s, x in zip(sequences, inputs, strict=True):
        if s.cached:
            bound(x[: s.cached], cache, case.metadata([(s, 0, s.cached)]))
    step = case.metadata([(s, s.cached, s.length) for s in sequences])
    new = torch.cat([x[s.cached :] for s, x in zip(sequences, inputs, strict=True)])
    expected = [case.oracle(problem, x, cos, sin)[s.cached :] for s, x in zip(sequences, inputs, strict=True)]
    assert case.relative_rms(bound(new, cache, step), torch.cat(expected)) < 1e-5
