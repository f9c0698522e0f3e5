"""Passes that keep a block's function: proven on its output, and better for what they are there for."""

import pytest
import torch

from tessera.layers.dense import dense_metadata
from tessera.numerics import dequantize_rows, quantize, quantize_rows, rope_tables, rotate
from tessera.quantization import passes
from tessera.quantization.balance import balance, best_scale
from tessera.quantization.block import FloatBlock, RoundedBlock, walk
from tessera.quantization.errors import CheckFailedError
from tessera.quantization.passes import Sample, transform
from tessera.quantization.smooth_attention import (
    Turn,
    find_turn,
    loss,
    smooth_attention,
    spread_positions,
    turn_rows,
)
from tessera.spec import Recipe, RopeConfig
from tiny import random_tensors, tiny_config

QOQ = Recipe.parse("qoq-g32")
CONFIGS = {
    "gqa 2": tiny_config(),
    "gqa 1": tiny_config(num_kv_heads=4),
    "gqa 4": tiny_config(num_kv_heads=1),
    "biases": tiny_config(attention_bias=True, mlp_bias=True),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def block_of(config, seed=0):
    """With loud channels behind both norms, as trained models have."""
    tensors = random_tensors(config, seed)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.1.{norm}.weight"][::7] *= 12
    prefix = "model.layers.1."
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return FloatBlock(config, 1, own)


def sample_of(config, lengths=(40, 24)):
    return Sample(normal(sum(lengths), config.hidden_size, seed=9), dense_metadata(lengths))


def difference(block, changed, sample):
    before, after = sample.observe(block)[1], sample.observe(changed)[1]
    return float((after - before).norm() / before.norm())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("change", [balance, smooth_attention], ids=lambda f: f.__name__)
def test_passes_keep_the_blocks_output(change, name):
    block, sample = block_of(CONFIGS[name]), sample_of(CONFIGS[name])
    changed, found = change(block, sample.observe(block)[0], QOQ)
    assert found
    assert any(not torch.equal(changed.tensors[n], block.tensors[n]) for n in block.tensors)
    assert difference(block, changed, sample) < 1e-5


def test_balance_lowers_the_error_of_a_layer_with_loud_inputs():
    """Few inputs a hundred times as loud as the rest, as behind a norm; measured at fresh tokens."""
    x, weight = normal(3000, 64), normal(96, 64, seed=1) / 8
    x[:, ::13] *= 30
    scale, alpha = best_scale(x[:2000], weight, QOQ)
    assert alpha > 0 and scale[::13].min() > 1.5 * scale[1] and float(scale.log().mean().abs()) < 1e-5

    def error(scale):
        rounded = quantize(weight * scale, QOQ.weight_chain()).dequantize()
        entered = dequantize_rows(quantize_rows(x[2000:] / scale))
        return (entered @ rounded.T - x[2000:] @ weight.T).norm()

    assert error(scale) < 0.9 * error(torch.ones(64))


def test_balance_leaves_even_inputs_alone():
    x = normal(600, 64)
    x = x / x.square().mean(0).sqrt()
    scale, _ = best_scale(x, normal(40, 64, seed=1), QOQ)
    assert torch.allclose(scale, torch.ones(64), atol=0.01)


def test_turn_commutes_with_rotation_and_cancels():
    """q and k turned by opposite complex numbers, at different positions: scores stay. With lambda different
    in the two halves of a pair they would not.
    """
    cos, sin = rope_tables(RopeConfig(), 16, 64)
    q, k = normal(64, 2, 16), normal(64, 2, 16, seed=1)
    turn = Turn(1 + normal(2, 8, seed=2).abs(), normal(2, 8, seed=3))

    def scores(q, k):
        return torch.einsum("qhd,khd->hqk", rotate(q, cos, sin), rotate(k, cos, sin))

    q_turned = turn_rows(q.reshape(64, 32).T, turn).T.reshape(64, 2, 16)
    k_turned = turn_rows(k.reshape(64, 32).T, Turn(1 / turn.scale, turn.angle)).T.reshape(64, 2, 16)
    assert torch.allclose(scores(q_turned, k_turned), scores(q, k), atol=1e-3)
    unpaired = torch.rand(16, generator=torch.Generator().manual_seed(4)) + 0.5
    assert not torch.allclose(scores(q * unpaired, k / unpaired), scores(q, k), atol=1e-1)


def keys_with_means(tokens=512, heads=2, width=32):
    """Keys as trained models have them: some slow pairs with steady means of either sign."""
    k = normal(tokens, heads, width, seed=5)
    k[..., 12] += 9
    k[..., 28] -= 7
    k[..., 13] -= 6
    return normal(tokens, 2 * heads, width, seed=6), k


def test_the_turn_lowers_the_error_of_scores():
    """Measured with KV4 at other tokens than the turn was found on, against none and the published rule."""
    q, k = keys_with_means()
    half = k[::2].reshape(-1, 2, 2, 16).abs().amax((0, 2)) ** 0.5

    def score_error(turn):
        def turned(x, turn):
            return turn_rows(x.flatten(1).T, turn).T.reshape(x.shape)

        wide = Turn(turn.scale.repeat_interleave(2, 0), turn.angle.repeat_interleave(2, 0))
        keys = turned(k[1::2], Turn(1 / turn.scale, turn.angle))
        error = (quantize(keys, Recipe.parse("qoq").kv_chain()).dequantize() - keys).repeat_interleave(2, 1)
        return torch.einsum("qhd,khd->hqk", turned(q[1::2], wide), error).square().mean()

    none = score_error(Turn(torch.ones(2, 16), torch.zeros(2, 16)))
    published = score_error(Turn(half, torch.zeros(2, 16)))
    turn, gain = find_turn(q[::2], k[::2])
    found = score_error(turn)
    assert 0.7 < float(found / none) / gain < 1.4
    assert published < none
    assert found < 0.6 * published


def test_keys_move_as_rotation_moves_them():
    """A key moved by n positions is the key rotary embedding gives n positions later; its norm stays."""
    config = tiny_config(max_position=64)
    content = normal(1, 2, 32).expand(40, 2, 32)
    cos, sin = rope_tables(config.rope, 32, 128)
    moved = spread_positions(rotate(content, cos[:40], sin[:40]), config)
    everywhere = rotate(content[:1].expand(128, 2, 32), cos, sin)
    distance = torch.cdist(
        moved.flatten(1), everywhere.flatten(1), compute_mode="donot_use_mm_for_euclid_dist"
    )
    assert float(distance.amin(1).max()) < 1e-3
    landed = distance.argmin(1) - torch.arange(40)
    assert landed.min() >= 0 and landed.max() < 64 and len(landed.unique()) > 25


def test_the_turn_holds_at_positions_calibration_did_not_have():
    """Means of slow pairs turn over the context; spread keys give a turn that pays further out."""
    config = tiny_config(rope=RopeConfig(theta=100000.0), max_position=8192)
    q, k = normal(512, 4, 32, seed=6), normal(512, 2, 32, seed=5) / 2
    for pair, (a, b) in enumerate([(9, 0), (0, 8), (-7, 0), (0, -8)], start=10):
        k[..., pair] += a
        k[..., pair + 16] += b
    cos, sin = rope_tables(config.rope, 32, 8192)
    near = rotate(k, cos[:512], sin[:512])
    energy = q.reshape(512, 2, 2, 2, 16).square().mean(0).sum((1, 2))

    def far_loss(keys):
        turn, _ = find_turn(q, keys)
        moved = [rotate(k, cos[at : at + 512], sin[at : at + 512]) for at in (2000, 4000, 7000)]
        return sum(float(loss(m.reshape(512, 2, 2, 16).transpose(0, 1), energy, turn).sum()) for m in moved)

    assert far_loss(spread_positions(near, config)) < 0.92 * far_loss(near)


def test_the_loss_predicts_the_error():
    """(range / 15)^2 / 12 per dimension, against measured errors of KV4, within a tenth."""
    q, k = keys_with_means()
    pairs = k.reshape(512, 2, 2, 16).transpose(0, 1)
    energy = q.reshape(512, 2, 2, 2, 16).square().mean(0).sum((1, 2))
    still = Turn(torch.ones(2, 16), torch.zeros(2, 16))
    error = (quantize(k, Recipe.parse("qoq").kv_chain()).dequantize() - k).repeat_interleave(2, 1)
    measured = torch.einsum("qhd,khd->hqk", q, error).square().mean((1, 2)).reshape(2, 2).sum(1)
    assert torch.allclose(loss(pairs, energy, still) / 2700, measured, rtol=0.1)


def test_check_refuses_a_pass_that_changes_the_function(monkeypatch):
    """A scale applied to two of three consumers: the kind of mistake --check is there for."""

    def forgetful(block, seen, recipe):
        changed, found = balance(block, seen, recipe)
        value = "self_attn.v_proj.weight"
        return changed.changed({value: block.tensors[value]}), found

    monkeypatch.setitem(passes.PASSES, "qoq", (forgetful,))
    config = CONFIGS["gqa 2"]
    block = block_of(config)
    with pytest.raises(CheckFailedError, match="forgetful changed the output of block 1"):
        transform(block, QOQ, sample_of(config), check=True)
    transform(block, QOQ, sample_of(config), check=False)


@pytest.mark.parametrize("name", CONFIGS)
def test_walk_equals_forward(name):
    """Stage by stage, layers replaced by themselves, the block computes what it computes in one go."""
    block, sample = block_of(CONFIGS[name]), sample_of(CONFIGS[name])
    seen, expected = sample.observe(block)
    state = RoundedBlock(block, Recipe.parse("w4a16-g32"))
    running = state.runnable()
    points = {"qkv": "qkv_in", "o": "o_in", "gate_up": "gate_up_in", "down": "down_in"}
    for stage, x in walk(running, sample.hidden, sample.meta, state.enter):
        assert torch.allclose(x, seen[points[stage]] if stage else expected, atol=1e-5)
        if stage:
            setattr(running, stage, state.linear(stage))
