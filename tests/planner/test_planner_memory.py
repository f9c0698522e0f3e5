"""Parameters, bytes and KV cache against counts made in other ways."""

from dataclasses import replace
from itertools import combinations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.planner import MODELS, ModelShape, PlanError, precision_of, with_weights
from tessera.planner.levers import LEVERS, group_of, recipe_of, with_levers
from tessera.planner.memory import (
    active_parameters,
    bits_per_weight,
    bytes_by_role,
    kv_bytes_per_token,
    parameter_count,
    streamed_bytes,
    weight_bytes,
)
from tessera.spec import GroupSizeError, ModelConfig, Pattern, RecipeError, affine_zero

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "smollm2-135m": 134_515_008,
}
"""Counted in the models' published weights."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_built_in_models_have_the_published_number_of_parameters(name):
    assert float(parameter_count(MODELS[name])) == PUBLISHED[name]


@st.composite
def configs(draw):
    head_dim = draw(st.sampled_from([32, 64, 128]))
    kv_heads = draw(st.integers(1, 8))
    heads = kv_heads * draw(st.integers(1, 4))
    return ModelConfig(
        "LlamaForCausalLM",
        vocab_size=draw(st.integers(1, 2000)),
        hidden_size=128 * draw(st.integers(1, 6)),
        intermediate_size=128 * draw(st.integers(1, 6)),
        num_layers=draw(st.integers(1, 5)),
        num_heads=heads * (4 if head_dim == 32 else 2 if head_dim == 64 else 1),
        num_kv_heads=kv_heads * (4 if head_dim == 32 else 2 if head_dim == 64 else 1),
        head_dim=head_dim,
        max_position=512,
        tied_embeddings=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
    )


@given(configs())
def test_16_bit_bytes_are_two_for_each_value_of_each_tensor_of_the_engine_s_model(config):
    shape = ModelShape.from_config(config)
    values = sum(map(prod, config.tensor_shapes().values()))
    assert shape.parameters == values
    assert float(weight_bytes(shape, precision_of("bf16"))) == 2 * values


@given(configs(), st.sampled_from([32, 64, 128]))
def test_qoq_bytes_are_codes_groups_and_rows(config, group):
    """Half a byte a weight, 12 bits a group, 2 bytes a row; tables one byte a weight and 2 bytes a row."""
    total = 0.0
    for name, shape in config.tensor_shapes().items():
        if len(shape) == 1:
            total += 2 * shape[0]
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            total += prod(shape) + 2 * shape[0]
        else:
            total += prod(shape) * (0.5 + 1.5 / group) + 2 * shape[0]
    got = float(weight_bytes(ModelShape.from_config(config), precision_of(f"qoq-g{group}")))
    matrices = sum(len(shape) > 1 for shape in config.tensor_shapes().values())
    assert total <= got <= total + matrices  # zero points of each matrix end on a whole byte


@given(configs(), st.sampled_from(["bf16", "qoq-g128", "w4a16-g64", "w8a8-chn"]))
def test_a_step_reads_everything_but_the_embedding_and_a_tied_table_whole(config, recipe):
    shape, precision = ModelShape.from_config(config), precision_of(recipe)
    held = float(weight_bytes(shape, precision))
    table = bytes_by_role(shape, precision)["embedding"]
    read = float(streamed_bytes(shape, precision, 7))
    assert read == (held if config.tied_embeddings else held - table)


@given(configs())
def test_kv_bytes_are_two_codes_for_each_channel_and_two_fp16_parameters_a_head(config):
    shape = ModelShape.from_config(config)
    channels = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    heads = 2 * config.num_layers * config.num_kv_heads
    full, four = precision_of("bf16").kv, precision_of("qoq-g128").kv
    assert float(kv_bytes_per_token(shape, full)) == 2 * channels
    assert float(kv_bytes_per_token(shape, four)) == channels / 2 + 4 * heads
    assert float(kv_bytes_per_token(shape, four, "none")) == channels / 2
    assert kv_bytes_per_token(shape, four).also == {"kv parameters not counted": channels / 2}
    assert not kv_bytes_per_token(shape, full).also


@given(st.integers(1, 300), st.sampled_from(["mixtral-8x7b", "mixtral-8x22b"]))
def test_a_mixture_reads_the_experts_that_the_batch_is_expected_to_hit(batch, name):
    model, precision = MODELS[name], precision_of("qoq-g128")
    roles = bytes_by_role(model, precision)
    read = float(streamed_bytes(model, precision, batch))
    hit = 1 - (1 - model.experts_per_token / model.experts) ** batch
    dense = sum(size for role, size in roles.items() if role not in ("expert", "embedding"))
    assert read == pytest.approx(dense + roles["expert"] * hit)
    assert float(streamed_bytes(model, precision, 1)) == pytest.approx(dense + roles["expert"] / 4)


def test_a_token_of_a_mixture_is_multiplied_with_two_of_eight_experts():
    assert float(active_parameters(MODELS["mixtral-8x7b"])) == pytest.approx(12.75e9, rel=0.01)


def test_a_tied_head_is_multiplied_with_though_held_once():
    model = MODELS["smollm2-135m"]
    active = float(active_parameters(model))
    assert active == float(active_parameters(replace(model, tied=False)))
    assert model.parameters - active == model.hidden * (2 * model.layers + 1)  # norms alone are left


@given(st.sampled_from([32, 64, 128, 256]))
def test_group_size_tax(group):
    bits = bits_per_weight(affine_zero(4, Pattern.blocks(1, group)))
    assert float(bits) == 4 + 20 / group


def test_groups_that_a_model_forbids_are_refused_with_those_that_fit():
    with pytest.raises(GroupSizeError, match=r"K = 576, which groups of 128 do not divide .* g32, g64"):
        weight_bytes(MODELS["smollm2-135m"], precision_of("qoq-g128"))


def test_unknown_recipes_get_the_grammar_and_the_baselines():
    with pytest.raises(RecipeError, match=r"'w3a8': weight bits 3 is not one of 4, 8; baselines: "):
        precision_of("w3a8")
    with pytest.raises(RecipeError, match="baselines: bf16"):
        precision_of("bf6")


def test_a_format_of_one_s_own_is_priced():
    three = with_weights(precision_of("bf16"), affine_zero(3, Pattern.blocks(1, 64)), "mine")
    assert (three.weight_bits, three.name, three.recipe) == (3, "mine", None)
    roles = bytes_by_role(MODELS["llama-2-7b"], three)
    linear = sum(p.parameters for p in MODELS["llama-2-7b"].parts() if p.role == "linear")
    assert roles["linear"] == linear * (3 + 19 / 64) / 8


def test_levers_change_what_they_name_and_nothing_else():
    model = MODELS["llama-3-8b"]
    base, full = with_levers(frozenset(), model), with_levers(frozenset(LEVERS), model)
    qoq = precision_of("qoq-g128")
    assert (base.linear, base.kv, base.compute) == (
        precision_of("bf16").linear, precision_of("bf16").kv, "bf16",
    )  # fmt: skip
    assert (full.linear, full.kv, full.compute) == (qoq.linear, qoq.kv, "int8")
    a8 = with_levers(frozenset({"A8"}), model)
    assert (a8.linear, a8.kv, a8.compute) == (base.linear, base.kv, "int8")


def test_recipes_of_levers_use_a_group_that_fits_the_model():
    assert group_of(MODELS["smollm2-135m"]) == "g64"
    assert recipe_of(frozenset(LEVERS), MODELS["smollm2-135m"]) == "qoq-g64"
    for model in MODELS.values():
        for count in range(len(LEVERS) + 1):
            for levers in map(frozenset, combinations(LEVERS, count)):
                precision = precision_of(recipe_of(levers, model))
                weight_bytes(model, precision)
                bits = (precision.weight_bits, precision.activation_bits, precision.kv_bits)
                least = 8 if levers else 16
                assert bits == (
                    4 if "W4" in levers else least,
                    8 if "A8" in levers else 16,
                    4 if "KV4" in levers else 16,
                )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layers": 0}, "layers is 0: it must be above 0"),
        ({"kv_heads": 5}, "32 query heads do not share 5 KV heads evenly"),
        ({"experts": 2, "experts_per_token": 3}, "3 of 2 experts"),
    ],
)
def test_impossible_shapes(changes, message):
    with pytest.raises(PlanError, match=message):
        replace(MODELS["llama-2-7b"], **changes)
