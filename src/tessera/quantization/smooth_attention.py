"""Keys that four bits can hold: scale and turn each rotary pair of K, and Q by the opposite.

SmoothAttention (QServe, Lin et al. 2024, section 4.2) divides K by lambda and multiplies Q by it, the same
lambda for both dimensions i and i + D/2 of a rotary pair, so that it commutes with the rotation. So does
turning a pair by a fixed angle: in complex numbers rotary embedding multiplies pair p by exp(i m theta_p);
here K is multiplied by c_p = exp(i angle_p) / lambda_p and Q by 1 / conj(c_p), and Re(q conj(k)) stays.
The turn matters because KV4 stores a minimum: slow pairs of K have steady means, and a head whose large
dimensions all point the same way spans half of one where they oppose. Both fold into the q and k weights.

What is minimized, per KV head, is the expected error of a score: rounding errors of K are uniform with
variance (range / 15)^2 / 12 and meet the energy of Q,

    loss = mean over tokens of (max - min of a head's K)^2  *  sum over pairs of lambda^2 |q|^2

Means of slow pairs turn with the position. A turn found at the calibration text's positions is no good at ten
times as many, so keys are first moved to positions all over the model's context (`spread_positions`).
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tessera.numerics.rope import inverse_frequencies, rotate
from tessera.numerics.threads import serial
from tessera.quantization.block import FloatBlock, Found, Seen
from tessera.spec import ModelConfig, Recipe

TOKENS: Final = 1024
"""Tokens the loss is taken over."""

ALPHAS: Final = (0.5, 0.0, 0.25, 0.75, 1.0)
"""lambda = max|K|^alpha / rms(Q)^beta; the published choice (0.5, 0) and none (0, 0) are among them."""
BETAS: Final = (0.0, 0.25, 0.5)

SWEEPS: Final = ((8, 1.3), (16, 1.15), (32, 1.07))
"""Rounds of refinement: angles tried per turn of a pair, and the factor by which lambda is tried."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Per KV head and pair, float32 [kv heads, D / 2]: K is divided by `scale` and turned by `angle`."""

    scale: Tensor
    angle: Tensor


def smooth_attention(block: FloatBlock, seen: Seen, recipe: Recipe) -> tuple[FloatBlock, Found]:
    """`seen` holds q [T, heads, D] and k [T, kv heads, D] of the block after rotary embedding.

    Reports `score_error`: the mean square error of scores expected after, over that before. A cache that is
    not quantized has no such error, and the block stays as it is.
    """
    if recipe.kv_bits == 16:
        return block, {}
    config = block.config
    turn, gain = find_turn(seen["q"], spread_positions(seen["k"], config))
    shared = config.num_heads // config.num_kv_heads
    changes = {}
    for kind in ("weight", "bias"):
        q, k = f"self_attn.q_proj.{kind}", f"self_attn.k_proj.{kind}"
        if q in block.tensors:
            changes[k] = turn_rows(block.tensors[k], Turn(1 / turn.scale, turn.angle))
            wide = Turn(*(x.repeat_interleave(shared, dim=0) for x in (turn.scale, turn.angle)))
            changes[q] = turn_rows(block.tensors[q], wide)
    return block.changed(changes), {"score_error": gain}


def spread_positions(k: Tensor, config: ModelConfig) -> Tensor:
    """Keys [T, heads, D] after rotary embedding, each as if it stood further on in the text.

    Every other token moves uniformly over the context, the others log-uniformly, so that short texts count
    too. The moves are a golden-ratio sequence: even, and the same every time.
    """
    index = torch.arange(len(k))
    fraction = index * 0.6180339887498949 % 1
    uniform = fraction * config.max_position
    moved = torch.where(index % 2 == 0, config.max_position**fraction - 1, uniform).floor()
    angles = moved.outer(inverse_frequencies(config.rope, config.head_dim))
    return rotate(k, angles.cos(), angles.sin())


def turn_rows(rows: Tensor, turn: Turn) -> Tensor:
    """Output rows [heads * D, ...] of a layer, each pair multiplied by scale and turned by angle."""
    heads, pairs = turn.scale.shape
    a, b = rows.reshape(heads, 2, pairs, -1).unbind(1)
    cos, sin = ((turn.scale * f(turn.angle)).unsqueeze(-1) for f in (torch.cos, torch.sin))
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=1).reshape(rows.shape)


def find_turn(q: Tensor, k: Tensor) -> tuple[Turn, float]:
    """The best turn found for queries [T, heads, D] and keys [T, kv heads, D] after rotary embedding, and
    the mean over heads of its loss relative to no turn's.
    """
    q, k = (x[:: -(-len(x) // TOKENS)].float() for x in (q, k))
    tokens, heads, width = k.shape
    pairs = k.reshape(tokens, heads, 2, width // 2).transpose(0, 1)
    energy = q.reshape(tokens, heads, -1, 2, width // 2).square().mean(0).sum((1, 2))
    with serial(pairs.numel()):
        turn = _best_power(pairs, energy)
        for angles, factor in SWEEPS:
            turn = _refine(pairs, energy, turn, angles, factor)
        still = Turn(torch.ones_like(turn.scale), torch.zeros_like(turn.angle))
        gain = loss(pairs, energy, turn) / loss(pairs, energy, still).clamp(min=1e-30)
    return turn, float(gain.mean())


def loss(pairs: Tensor, energy: Tensor, turn: Turn) -> Tensor:
    """float32 [heads], for pairs of K [heads, T, 2, D / 2] and the energy of Q [heads, D / 2]."""
    low, high = _turned(pairs, turn).flatten(2).aminmax(dim=2)
    return (high - low).square().mean(1) * (turn.scale.square() * energy).sum(1)


def _turned(pairs: Tensor, turn: Turn) -> Tensor:
    a, b = pairs.unbind(2)
    cos, sin = ((f(turn.angle) / turn.scale).unsqueeze(1) for f in (torch.cos, torch.sin))
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=2)


def _best_power(pairs: Tensor, energy: Tensor) -> Turn:
    largest = pairs.abs().amax((1, 2)).clamp(min=1e-6)
    rms = energy.sqrt().clamp(min=1e-6)
    best, lowest = torch.ones_like(largest), torch.full((len(pairs),), torch.inf)
    for alpha in ALPHAS:
        for beta in BETAS:
            scale = largest**alpha / rms**beta
            scale = scale / scale.log().mean(1, keepdim=True).exp()
            value = loss(pairs, energy, Turn(scale, torch.zeros_like(scale)))
            best = torch.where((value < lowest).unsqueeze(1), scale, best)
            lowest = torch.minimum(value, lowest)
    return Turn(best, torch.zeros_like(best))


def _refine(pairs: Tensor, energy: Tensor, turn: Turn, angles: int, factor: float) -> Turn:
    """One pair after the other: the best of `angles` turns and three scales, the others held."""
    scale, angle = turn.scale.clone(), turn.angle.clone()
    steps = torch.arange(angles) * (2 * torch.pi / angles)
    factors = torch.tensor([1.0, factor, 1 / factor])
    delta = steps.repeat(3)
    ratio = factors.repeat_interleave(angles)
    turned = _turned(pairs, Turn(scale, angle))
    for pair in range(scale.shape[1]):
        others = torch.cat((turned[..., :pair], turned[..., pair + 1 :]), dim=3).flatten(2)
        low, high = (x.unsqueeze(2) for x in others.aminmax(dim=2))
        a, b = turned[..., pair].unsqueeze(3).unbind(2)
        cos, sin = delta.cos() / ratio, delta.sin() / ratio
        x, y = a * cos - b * sin, b * cos + a * sin
        span = torch.maximum(high, torch.maximum(x, y)) - torch.minimum(low, torch.minimum(x, y))
        own = energy[:, pair] * scale[:, pair].square()
        rest = (scale.square() * energy).sum(1) - own
        value = span.square().mean(1) * (rest.unsqueeze(1) + own.unsqueeze(1) * ratio.square())
        best = value.argmin(dim=1)
        scale[:, pair] *= ratio[best]
        angle[:, pair] += delta[best]
        index = best.view(-1, 1, 1).expand(-1, pairs.shape[1], 1)
        turned[..., pair] = torch.cat((x.gather(2, index), y.gather(2, index)), dim=2)
    return Turn(scale, angle)
