"""Fused and side-by-side linear layers."""

import pytest
import torch

from tessera.kernels import cpu
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.types import QuantizedRows
from tessera.layers.bound import KernelLayers
from tessera.layers.linear import Linear, LinearWeights, SideBySide, _join_bias, fuse
from tessera.layers.rows import RMSNorm, SiluMul
from tessera.layers.target import Target
from tessera.numerics import plain, quantize, quantize_rows
from tessera.spec import A8, A32, S8N, Pattern, Recipe, symmetric
from tiny import quantized, random_tensors, tiny_config

CPU = Target(cpu.device(), torch.float32)
INT8 = symmetric(S8N, Pattern.channel())
PER_TENSOR = symmetric(S8N, Pattern.tensor())


def stored(chain, activation, rows=32, bias=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, 64, generator=generator)
    return LinearWeights(
        quantize(weight, chain) if chain else plain(weight),
        torch.randn(rows, generator=generator) if bias else None,
        activation,
    )


def rows(count=5):
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(
    ("chain", "activation"),
    [(None, A32), (INT8, A8), (PER_TENSOR, A32), (Recipe.parse("qoq-g32").weight_chain(), A8)],
    ids=["plain", "int8", "per-tensor", "progressive"],
)
@pytest.mark.parametrize("biases", [(False, False, False), (True, True, True), (True, False, True)])
def test_equal_chains_fuse_into_one_layer_with_the_same_outputs(chain, activation, biases):
    parts = [
        stored(chain, activation, n, bias, seed)
        for seed, (n, bias) in enumerate(zip((32, 16, 48), biases, strict=True))
    ]
    fused = fuse(CPU, parts)
    assert isinstance(fused, Linear)
    apart = torch.cat([Linear(CPU, part)(rows()) for part in parts], dim=-1)
    torch.testing.assert_close(fused(rows()), apart, rtol=1e-5, atol=1e-5)


def test_biases_join_on_their_device_where_a_part_has_none():
    with_bias = stored(INT8, A8, bias=True)
    biases = [None, with_bias.bias.to("meta"), with_bias.bias.to("meta")]
    joined = _join_bias([LinearWeights(with_bias.weight, bias, A8) for bias in biases])
    assert joined.device.type == "meta" and joined.shape == (96,)


def test_values_a_kernel_refuses_are_told_with_the_layers_name():
    config = tiny_config(hidden_size=64, intermediate_size=128)
    checkpoint = quantized(config, random_tensors(config), Recipe.parse("w4a8-g64"))
    name = "model.layers.1.self_attn.o_proj"
    weight = checkpoint.qtensors[f"{name}.weight"]
    weight.params["group_scale"].codes[3], weight.params["group_zero"].codes[3] = 16, 7
    weight.codes[3] = 15
    with pytest.raises(KernelArgumentError, match=rf"^{name}: .*(row 3, group 0|block \[3, 0\])"):
        KernelLayers(checkpoint, CPU).linear(name)


@pytest.mark.parametrize(
    "second",
    [stored(None, A32), stored(INT8, A32, seed=2)],
    ids=["other-weights", "other-activations"],
)
def test_unequal_formats_stay_apart(second):
    parts = [stored(INT8, A8, seed=1), second]
    layer = fuse(CPU, parts)
    assert isinstance(layer, SideBySide)
    apart = torch.cat([Linear(CPU, part)(rows()) for part in parts], dim=-1)
    assert torch.equal(layer(rows()), apart)
    assert layer.nbytes == sum(Linear(CPU, part).nbytes for part in parts)
    # Not all parts take int8 rows, so whoever feeds them must hand over floats.
    assert not layer.wants_rows


def test_unequal_weights_of_one_input_format_take_rows_together():
    parts = [stored(INT8, A8), stored(Recipe.parse("qoq-g32").weight_chain(), A8)]
    layer = fuse(CPU, parts)
    assert isinstance(layer, SideBySide)
    assert layer.wants_rows
    assert torch.equal(layer(rows()), layer(QuantizedRows(*quantize_rows(rows()))))


def test_int8_layer_takes_floats_or_rows():
    layer = Linear(CPU, stored(INT8, A8))
    assert layer.wants_rows
    assert torch.equal(layer(rows()), layer(QuantizedRows(*quantize_rows(rows()))))


@pytest.mark.parametrize("quantize_output", [False, True])
def test_rows_come_in_the_form_asked_for(quantize_output):
    norm = RMSNorm(CPU, torch.ones(64), 1e-5, quantize=quantize_output)
    out, residual = norm(rows(), rows())
    assert isinstance(out, QuantizedRows) == quantize_output
    assert torch.equal(residual, rows() + rows())
    gated = SiluMul(CPU, 32, quantize=quantize_output)(rows())
    assert isinstance(gated, QuantizedRows) == quantize_output
    assert gated.shape == (5, 32)
