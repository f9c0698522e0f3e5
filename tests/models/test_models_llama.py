"""The float reference against transformers, and a block by itself."""

import pytest
import torch

from tessera.layers.dense import dense_metadata
from tessera.layers.reference import FloatWeights
from tessera.models.llama import Llama, LlamaBlock
from tessera.models.loader import build_model
from tessera.spec import RopeConfig
from tiny import LLAMA3_ROPE, random_tensors, tiny_config, transformers_model

CASES = {
    "gqa1": {"num_heads": 2, "num_kv_heads": 2},
    "gqa3-tied": {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "tied_embeddings": True},
    "gqa8-untied": {"num_heads": 8, "num_kv_heads": 1, "tied_embeddings": False},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "both-biases-untied": {"attention_bias": True, "mlp_bias": True, "tied_embeddings": False},
    "rope-llama3": {"rope": LLAMA3_ROPE},
    "rope-linear": {"rope": RopeConfig(kind="linear", factor=4.0)},
    "eps": {"norm_eps": 1e-3},
}


def relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_reference_logits_equal_transformers(changes):
    config = tiny_config(**changes)
    tensors = random_tensors(config)
    tokens = torch.randint(config.vocab_size, (2, 150), generator=torch.Generator().manual_seed(1))
    model = build_model(FloatWeights(config, tensors), paged=False)
    with torch.no_grad():
        want = transformers_model(config, tensors)(tokens).logits
    hidden = model.forward(tokens.flatten(), dense_metadata([150, 150]))
    got = model.logits(hidden).unflatten(0, (2, 150))
    # Same operations in float32, in another order at most: about 1e-7 each, growing with depth.
    assert relative_rms(got, want) < 2e-6


@pytest.mark.parametrize(("dtype", "epsilon"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_reference_in_16_bits(dtype, epsilon):
    config = tiny_config()
    weights = FloatWeights(config, {name: t.to(dtype) for name, t in random_tensors(config).items()})
    tokens = torch.randint(config.vocab_size, (70,), generator=torch.Generator().manual_seed(3))
    meta = dense_metadata([50, 20])
    want = build_model(weights, paged=False)
    got = build_model(weights, dtype=dtype, paged=False)
    hidden = got.forward(tokens, meta)
    assert hidden.dtype == dtype
    # The same weights; a dozen roundings a block, independent, and as many blocks as the model has.
    bound = epsilon * (12 * config.num_layers) ** 0.5
    assert relative_rms(got.logits(hidden), want.logits(want.forward(tokens, meta))) < bound


def test_sequences_of_a_step_do_not_see_each_other():
    config = tiny_config()
    model = build_model(FloatWeights(config, random_tensors(config)), paged=False)
    tokens = torch.randint(config.vocab_size, (40,), generator=torch.Generator().manual_seed(2))
    together = model.forward(tokens, dense_metadata([7, 1, 32]))
    for start, stop in ((0, 7), (7, 8), (8, 40)):
        alone = model.forward(tokens[start:stop], dense_metadata([stop - start]))
        torch.testing.assert_close(together[start:stop], alone, rtol=1e-5, atol=1e-5)


def test_block_from_floats_is_the_models_block():
    config = tiny_config(attention_bias=True)
    tensors = random_tensors(config)
    model = build_model(FloatWeights(config, tensors), paged=False)
    assert isinstance(model, Llama)
    hidden = torch.randn(20, config.hidden_size)
    meta = dense_metadata([12, 8])
    own = {name: t for name, t in tensors.items() if name.startswith("model.layers.1.")}
    got = LlamaBlock.from_floats(config, 1, own).forward(hidden, None, meta)
    want = model.blocks[1].forward(hidden, None, meta)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_observer_sees_inputs_that_reproduce_the_block():
    config = tiny_config()
    tensors = random_tensors(config)
    block = LlamaBlock.from_floats(config, 0, tensors)
    seen: dict[str, torch.Tensor] = {}
    hidden = torch.randn(10, config.hidden_size)
    out, residual = block.forward(hidden, None, dense_metadata([10]), observer=seen.__setitem__)
    name = "model.layers.0"
    shapes = {point: tuple(x.shape) for point, x in seen.items()}
    heads, kv_heads, d = config.num_heads, config.num_kv_heads, config.head_dim
    assert shapes == {
        "qkv_in": (10, config.hidden_size), "k_pre": (10, kv_heads, d), "v": (10, kv_heads, d),
        "q": (10, heads, d), "k": (10, kv_heads, d), "o_in": (10, config.q_size),
        "gate_up_in": (10, config.hidden_size), "down_in": (10, config.intermediate_size),
    }  # fmt: skip
    k = seen["qkv_in"] @ tensors[f"{name}.self_attn.k_proj.weight"].T
    torch.testing.assert_close(seen["k_pre"].flatten(1), k)
    torch.testing.assert_close(seen["down_in"] @ tensors[f"{name}.mlp.down_proj.weight"].T, out)
    attended = seen["o_in"] @ tensors[f"{name}.self_attn.o_proj.weight"].T
    torch.testing.assert_close(hidden + attended, residual)
    # Rotation turns each pair without changing its length, and leaves position 0 alone.
    torch.testing.assert_close(seen["k"].norm(dim=-1), seen["k_pre"].norm(dim=-1))
    torch.testing.assert_close(seen["k"][0], seen["k_pre"][0])
    assert not torch.allclose(seen["k"][9], seen["k_pre"][9])


def test_dense_attention_refuses_part_of_a_sequence():
    config = tiny_config()
    block = LlamaBlock.from_floats(config, 0, random_tensors(config))
    whole = dense_metadata([4])
    part = type(whole)(
        whole.positions + 3, whole.slot_mapping, whole.cu_seqlens, whole.context_lens + 3,
        whole.block_tables, 4, 7,
    )  # fmt: skip
    with pytest.raises(ValueError, match="whole sequences"):
        block.forward(torch.randn(4, config.hidden_size), None, part)
