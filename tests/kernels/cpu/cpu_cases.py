"""Problems that several tests of the CPU kernels share."""

import torch

from tessera.kernels import cpu
from tessera.kernels.ops import LINEAR, LinearProblem
from tessera.kernels.registry import Device
from tessera.kernels.types import QuantizedRows
from tessera.numerics import quantize, quantize_rows
from tessera.spec import A8, LinearSpec, Recipe

ARCHITECTURES = cpu.available()
"""All that this machine can run: each has its own code for most kernels."""


def rows(x):
    return QuantizedRows(*quantize_rows(x))


def some_rows(x, indices):
    """Rows of floats or of QuantizedRows, in a new order."""
    if isinstance(x, QuantizedRows):
        return QuantizedRows(x.codes[indices], x.scale[indices], x.row_sum[indices])
    return x[indices]


def linear_case(arch, recipe, n, k, tokens, seed=0):
    """(problem, weight, bias, x) of a layer quantized as `recipe` says."""
    torch.manual_seed(seed)
    weight = quantize(torch.randn(n, k), recipe.weight_chain())
    spec = LinearSpec(n, k, weight.chain, recipe.activation_chain(), bias=True)
    x = torch.randn(tokens, k)
    problem = LinearProblem(Device("cpu", arch), spec)
    return problem, weight, torch.randn(n), rows(x) if spec.activation == A8 else x


def bind(problem, weight, bias):
    return LINEAR.select(problem).bind(problem, weight, bias)


def recipe_of(text):
    """Groups may end short: the sizes of these tests are odd on purpose."""
    return Recipe.parse(text, ragged_tail="-g" in text)
