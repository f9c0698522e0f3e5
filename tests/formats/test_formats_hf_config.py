"""config.json: both generations of its keys, defaults, refusals by name."""

from typing import Any

import pytest

from tessera.formats.errors import ConfigError, UnknownArchitectureError
from tessera.formats.hf_config import config_json, parse_config
from tessera.spec import RopeConfig
from tiny import LLAMA3_ROPE, TINY, hf_config, tiny_config

LLAMA3_KEYS = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": False, "attention_bias": True, "mlp_bias": True, "bos_id": None, "eos_ids": ()},
        {"rope": LLAMA3_ROPE, "eos_ids": (2, 7)},
        {"rope": RopeConfig(1e6, "linear", 4.0)},
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    config = tiny_config(**changes)
    assert parse_config(config_json(config)) == config
    assert parse_config(hf_config(config)) == config


def test_rope_of_transformers_4() -> None:
    raw = hf_config(TINY)
    del raw["rope_parameters"]
    assert parse_config(raw).rope == RopeConfig(10000.0)
    assert parse_config(raw | {"rope_theta": 5e5, "rope_scaling": None}).rope == RopeConfig(5e5)
    new = {"rope_type": "llama3", **LLAMA3_KEYS}
    assert parse_config(raw | {"rope_theta": 5e5, "rope_scaling": new}).rope == LLAMA3_ROPE
    old = {"type": "linear", "factor": 2}
    assert parse_config(raw | {"rope_scaling": old}).rope == RopeConfig(10000.0, "linear", 2.0)


def test_defaults_are_those_of_transformers() -> None:
    from transformers import LlamaConfig

    sizes = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    }
    config, theirs = parse_config(sizes | {"architectures": ["LlamaForCausalLM"]}), LlamaConfig(**sizes)
    assert (config.num_kv_heads, config.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (config.norm_eps, config.rope.theta) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])
    assert (config.tied_embeddings, config.attention_bias, config.mlp_bias) == (
        theirs.tie_word_embeddings,
        theirs.attention_bias,
        theirs.mlp_bias,
    )


def test_stop_tokens_are_those_of_the_generation_settings() -> None:
    raw = hf_config(TINY)
    assert parse_config(raw | {"eos_token_id": 5}).eos_ids == (5,)
    assert parse_config(raw, {"eos_token_id": [7, 8]}).eos_ids == (7, 8)
    assert parse_config(raw, {"temperature": 0.5}).eos_ids == TINY.eos_ids
    assert parse_config(raw | {"eos_token_id": None}).eos_ids == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": None, "vocab_size": None}, "lacks vocab_size, hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn.*default, linear, llama3"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "lacks low_freq_factor, high_freq_factor, original",
        ),
        ({"num_key_value_heads": 3}, "4 query heads"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"eos_token_id": "two"}, "eos_token_id is 'two'"),
    ],
)
def test_what_cannot_be_used_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config(hf_config(TINY) | change)


@pytest.mark.parametrize(
    "raw", [{"architectures": ["MambaForCausalLM"]}, {"model_type": "mamba"}, {"architectures": None}]
)
def test_unknown_architectures_are_named(raw: dict[str, Any]) -> None:
    with pytest.raises(UnknownArchitectureError, match="known architectures: LlamaForCausalLM"):
        parse_config(raw)
