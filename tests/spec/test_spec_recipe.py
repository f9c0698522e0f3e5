"""The recipe grammar, and group sizes against layers."""

import pytest

from tessera.spec import GroupSizeError, ModelConfig, Recipe, RecipeError, RopeConfig, SpecError


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("qoq", "qoq-g128"),
        ("qoq-g64", "qoq-g64"),
        ("qoq-chn", "qoq-chn"),
        ("w4a8kv4-g128-qoq", "qoq-g128"),
        ("w4", "w4a16-g128-gptq"),
        ("w4a16-g32", "w4a16-g32-gptq"),
        ("w4a8kv4-g64-rtn", "w4a8kv4-g64-rtn"),
        ("w8a8", "w8a8-chn-rtn"),
        ("w8a8kv4-chn", "w8a8kv4-chn-rtn"),
    ],
)
def test_grammar(text, full):
    recipe = Recipe.parse(text)
    assert str(recipe) == full
    assert Recipe.parse(str(recipe)) == recipe


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not w<bits>"),
        ("awq", "is not w<bits>"),
        ("w4a8-g128-", "is not w<bits>"),
        ("w5a8", "weight bits 5 is not one of 4, 8"),
        ("w4a4", "activation bits 4"),
        ("w4a8kv8", "KV bits 8"),
        ("w4-g96", "group 96 is not one of 32, 64, 128, chn"),
        ("w4-g0", "is not w<bits>"),
        ("w4-g128-magic", "algorithm magic"),
        ("w8a8-g128", "per channel"),
        ("w4a16-g128-qoq", "W4A8 algorithm"),
        ("qoq-g48", "group 48"),
    ],
)
def test_errors_name_the_part(text, reason):
    with pytest.raises(RecipeError, match=reason):
        Recipe.parse(text)


def test_ragged_tail_needs_groups():
    with pytest.raises(RecipeError, match="ragged"):
        Recipe.parse("qoq-chn", ragged_tail=True)


def test_chains_of_recipes():
    assert str(Recipe.parse("w8a8").weight_chain()) == "s8n --scale(scale: f16; c)--> f32"
    assert "b(1,64)" in str(Recipe.parse("w4a16-g64").weight_chain())
    assert Recipe.parse("qoq-chn").weight_chain() == Recipe.parse("w4a16-chn").weight_chain()
    assert Recipe.parse("w4a16").kv_chain().is_plain and Recipe.parse("w4a16").activation_chain().is_plain
    assert Recipe.parse("qoq").kv_chain().codes.bits == 4
    ragged = Recipe.parse("qoq-g128", ragged_tail=True).weight_chain()
    assert ragged.steps[0].pattern.counts((2, 576)) == (2, 5)


def test_group_size_error_names_layer_and_way_out():
    layers = {"model.layers.0.self_attn.q_proj": 576, "model.layers.0.mlp.down_proj": 1536}
    with pytest.raises(GroupSizeError) as caught:
        Recipe.parse("qoq-g128").check_layers(layers)
    message = str(caught.value)
    assert "q_proj has K = 576" in message
    assert "g32, g64" in message
    assert "--ragged-tail" in message
    assert caught.value.param == "recipe"
    for fine in (
        Recipe.parse("qoq-g64"),
        Recipe.parse("qoq-chn"),
        Recipe.parse("qoq-g128", ragged_tail=True),
    ):
        fine.check_layers(layers)


TINY = ModelConfig("LlamaForCausalLM", 100, 32, 48, 2, 4, 2, 8, 64, rope=RopeConfig(kind="linear", factor=2))


def test_model_config_round_trip_and_shapes():
    assert ModelConfig.from_json(TINY.to_json()) == TINY
    shapes = TINY.tensor_shapes()
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (16, 32)
    assert shapes["lm_head.weight"] == (100, 32)
    assert len(shapes) == 3 + 2 * 9
    assert list(TINY.linears())[:2] == ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"]


def test_model_config_refuses_nonsense():
    with pytest.raises(SpecError, match="num_layers is 0"):
        ModelConfig.from_json(TINY.to_json() | {"num_layers": 0})
    with pytest.raises(SpecError, match="do not share"):
        ModelConfig.from_json(TINY.to_json() | {"num_kv_heads": 3})
    with pytest.raises(SpecError, match="unknown model settings: colour"):
        ModelConfig.from_json(TINY.to_json() | {"colour": 1})
    with pytest.raises(SpecError, match="do not fit"):
        ModelConfig.from_json({"architecture": "LlamaForCausalLM"})
    with pytest.raises(SpecError, match="do not fit"):
        ModelConfig.from_json(TINY.to_json() | {"rope": 3})


def test_tied_and_biased_tensors():
    config = ModelConfig.from_json(
        TINY.to_json() | {"tied_embeddings": True, "attention_bias": True, "mlp_bias": True}
    )
    shapes = config.tensor_shapes()
    assert "lm_head.weight" not in shapes
    assert sum(name.endswith(".bias") for name in shapes) == 2 * 7
