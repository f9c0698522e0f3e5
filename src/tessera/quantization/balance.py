"""Input channels scaled so that loud ones lose less (AWQ, Lin et al. 2023, section 3.2), for int8 inputs too.

A layer's input channel j is divided by s_j and its weight column multiplied by it, s = rms(x)^alpha. Loud
channels then have larger weights, hence smaller relative rounding errors, and int8 inputs a smaller range.
The division costs nothing: it goes into the norm before q, k, v and gate, up, and into the rows of up before
down (the gate's side is not linear). The exponent is searched per layer by the error the layer would really
make; alpha = 0 is a candidate, so a layer is left alone where scaling does not pay. Folding the whole norm
weight into the layers behind it, as QServe does before it rotates, is the choice s = gamma; on SmolLM2 that
costs accuracy.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tessera.numerics import dequantize_rows, quantize_rows
from tessera.quantization.block import STAGES, FloatBlock, Found, Seen
from tessera.quantization.rounding import Inputs, round_gptq
from tessera.quantization.stats import second_moment
from tessera.spec import Recipe

ALPHAS: Final = (0.0, 0.2, 0.35)

ROWS: Final = 128
"""Output rows that a candidate is tried on. GPTQ treats rows independently, so a sample of them is fair."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stage whose inputs can be scaled: where they are observed, and what divides them."""

    stage: str
    point: str
    producer: str


TARGETS: Final = (
    Target("qkv", "qkv_in", "input_layernorm"),
    Target("gate_up", "gate_up_in", "post_attention_layernorm"),
    Target("down", "down_in", "mlp.up_proj"),
)


def balance(block: FloatBlock, seen: Seen, recipe: Recipe) -> tuple[FloatBlock, Found]:
    """The block with every target's channels scaled by the best exponent, and that exponent by stage.

    Keeps the block's function.
    """
    found: Found = {}
    for target in TARGETS:
        layers = [f"{name}.weight" for name in STAGES[target.stage]]
        weight = torch.cat([block.tensors[name] for name in layers])
        scale, found[target.stage] = best_scale(seen[target.point], weight, recipe)
        changes = {name: block.tensors[name] * scale for name in layers}
        for kind in ("weight", "bias"):
            if (name := f"{target.producer}.{kind}") in block.tensors:
                divided = block.tensors[name]
                changes[name] = divided / scale.reshape(-1, *[1] * (divided.dim() - 1))
        block = block.changed(changes)
    return block, found


def best_scale(x: Tensor, weight: Tensor, recipe: Recipe) -> tuple[Tensor, float]:
    """Scale float32 [K] for inputs [T, K] and weights [N, K], and its exponent: found on half of the tokens
    by the error on the other half, after GPTQ and, where the recipe has them, int8 inputs.
    """
    rows = weight[:: max(1, len(weight) // ROWS)][:ROWS]
    loudness = x.square().mean(0).sqrt()
    loudness = loudness.clamp(min=float(loudness.max()) * 1e-6 + 1e-30)
    hessian = second_moment(x[::2], "a layer being balanced")
    scales = [_power(loudness, alpha) for alpha in ALPHAS]
    errors = [_error(x[1::2], rows, scale, hessian, recipe) for scale in scales]
    best = errors.index(min(errors))
    return scales[best], ALPHAS[best]


def _power(loudness: Tensor, alpha: float) -> Tensor:
    """loudness^alpha with geometric mean 1, so that magnitudes stay where they were."""
    log = alpha * loudness.log()
    return (log - log.mean()).exp()


def _error(x: Tensor, rows: Tensor, scale: Tensor, hessian: Tensor, recipe: Recipe) -> float:
    inputs = Inputs.of(hessian / scale / scale.unsqueeze(1))
    rounded = round_gptq(rows * scale, inputs, recipe.weight_chain()).weight.dequantize()
    entered = x / scale
    if recipe.activation_bits == 8:
        entered = dequantize_rows(quantize_rows(entered))
    return float(torch.linalg.norm(entered @ rounded.T - x @ rows.T))
