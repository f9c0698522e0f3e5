"""Models from names, directories, config.json and GGUF headers; what is missing or not priced is named."""

import json
import struct
from dataclasses import replace

import pytest

from smollm2 import smollm2_path
from tessera.planner import MODELS, ModelFileError, PlanError, UnknownModelError, shape_of
from tessera.planner.builtin import REFERENCE_7B
from tessera.spec import ModelConfig

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def write_config(directory, **changes):
    raw = {key: value for key, value in (LLAMA | changes).items() if value is not ...}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def test_config_json_of_a_known_model_is_its_built_in_shape(tmp_path):
    directory = write_config(tmp_path / "m")
    expected = replace(MODELS["llama-3-8b"], name="m")
    assert shape_of(directory) == shape_of(str(directory)) == expected
    assert replace(shape_of(directory / "config.json"), name="m") == expected


def test_qwen_has_biases_on_qkv_alone_and_qwen3_norms(tmp_path):
    two = shape_of(write_config(tmp_path / "a", model_type="qwen2"))
    assert (two.qkv_bias, two.output_bias, two.qk_norm) == (True, False, False)
    three = shape_of(write_config(tmp_path / "b", model_type="qwen3", head_dim=128, attention_bias=False))
    assert (three.qkv_bias, three.qk_norm, three.head_dim) == (False, True, 128)


def test_mixtral_has_experts(tmp_path):
    shape = shape_of(
        write_config(tmp_path / "x", model_type="mixtral", vocab_size=32000, max_position_embeddings=32768,
                     num_local_experts=8, num_experts_per_tok=2)
    )  # fmt: skip
    assert shape == replace(MODELS["mixtral-8x7b"], name="x")


def test_sizes_of_a_text_model_inside_a_larger_one_are_found(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": LLAMA}))
    assert shape_of(tmp_path).hidden == 4096


def test_missing_keys_are_named_together(tmp_path):
    directory = write_config(tmp_path / "m", vocab_size=..., hidden_size=...)
    with pytest.raises(ModelFileError, match=r"config.json lacks hidden_size, vocab_size"):
        shape_of(directory)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_size": "big"}, "hidden_size is 'big', not a positive integer"),
        ({"num_local_experts": "8"}, "experts is '8', not a positive integer"),
        ({"num_local_experts": 8, "num_experts_per_tok": "2"}, "experts_per_token is '2', not a positive"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"max_position_embeddings": "x", "sliding_window": 5}, "max_position_embeddings is 'x'"),
        ({"num_key_value_heads": 5}, "32 query heads do not share 5 KV heads"),
        ({"kv_lora_rank": 512}, "kv_lora_rank .multi-head latent attention., which is not priced"),
        ({"n_shared_experts": 1}, "shared experts"),
        ({"model_type": "opt"}, "is of type opt, which has no gate"),
        ({"sliding_window": 4096}, "a window of 4096 tokens is not priced"),
        ({"num_local_experts": 2, "num_experts_per_tok": 3}, "3 of 2 experts"),
    ],
)
def test_config_that_cannot_be_priced(tmp_path, changes, message):
    with pytest.raises(ModelFileError, match=message):
        shape_of(write_config(tmp_path / "m", **changes))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_config_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        shape_of(tmp_path)


def test_directory_without_config(tmp_path):
    with pytest.raises(ModelFileError, match=r"config\.json"):
        shape_of(tmp_path)


@pytest.mark.parametrize(
    "typo, near", [("lama-3-8b", "llama-3-8b"), ("meta-llama/Llama-3.1-8b-it", "llama-3.1-8b")]
)
def test_unknown_names_get_the_nearest(typo, near):
    with pytest.raises(
        UnknownModelError, match=rf"no model .*nearest: .*{near}.*known by name: reference-7b"
    ):
        shape_of(typo)


def test_names_ignore_case():
    assert shape_of("Llama-3-8B") is MODELS["llama-3-8b"]


def test_kv_heads_replace_the_model_s_own():
    assert shape_of("reference-7b", 8) == replace(REFERENCE_7B, kv_heads=8)
    with pytest.raises(
        PlanError, match="32 query heads do not share 7 KV heads evenly: take a divisor of 32"
    ):
        shape_of("reference-7b", 7)
    with pytest.raises(PlanError, match="kv_heads is -1"):
        shape_of("reference-7b", -1)


def test_the_engine_s_config_is_a_shape():
    config = ModelConfig("LlamaForCausalLM", 128256, 4096, 14336, 32, 32, 8, 128, 8192)
    assert shape_of(config) == replace(MODELS["llama-3-8b"], name="model")
    assert shape_of(MODELS["llama-3-8b"]) is MODELS["llama-3-8b"]


GGUF = {
    "general.architecture": "llama",
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192,
    "tokenizer.ggml.tokens": ["a", "bc"],
    "tokenizer.ggml.scores": [0.5, 1.5],
}


def packed(text):
    return struct.pack("<Q", len(text)) + text.encode()


def value(item):
    match item:
        case str():
            return struct.pack("<I", 8) + packed(item)
        case int():
            return struct.pack("<II", 4, item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(packed, item))
        case _:
            return struct.pack("<IIQ", 9, 6, len(item)) + struct.pack(f"<{len(item)}f", *item)


def write_gguf(path, keys=GGUF, tensors=None, version=3):
    tensors = {"token_embd.weight": (49152, 576)} if tensors is None else tensors
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    data += b"".join(packed(key) + value(item) for key, item in keys.items())
    for name, shape in tensors.items():
        data += packed(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        data += struct.pack("<IQ", 0, 0)
    path.write_bytes(data)
    return path


def test_gguf_header_is_the_built_in_shape(tmp_path):
    path = write_gguf(tmp_path / "smol.gguf")
    assert shape_of(path) == replace(MODELS["smollm2-135m"], name="smol")


def test_tensors_of_a_gguf_file_tell_head_biases_and_norms(tmp_path):
    names = ("output.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_up.bias")
    path = write_gguf(
        tmp_path / "m.gguf", tensors={"token_embd.weight": (100, 576)} | dict.fromkeys(names, (576,))
    )
    shape = shape_of(path)
    assert (shape.tied, shape.qkv_bias, shape.qk_norm, shape.mlp_bias, shape.vocab) == (
        False, True, True, True, 100,
    )  # fmt: skip


def test_gguf_without_keys_names_them(tmp_path):
    keys = {k: v for k, v in GGUF.items() if k not in ("llama.block_count", "llama.context_length")}
    with pytest.raises(ModelFileError, match=r"lacks llama.block_count, llama.context_length"):
        shape_of(write_gguf(tmp_path / "m.gguf", keys))
    with pytest.raises(ModelFileError, match=r"lacks general\.architecture"):
        shape_of(write_gguf(tmp_path / "m.gguf", {}))
    with pytest.raises(ModelFileError, match=r"lacks the tensor token_embd\.weight"):
        shape_of(write_gguf(tmp_path / "m.gguf", tensors={}))


def test_windows_that_are_off_or_no_shorter_than_the_context_do_not_matter(tmp_path):
    off = write_config(tmp_path / "a", sliding_window=4096, use_sliding_window=False)
    long = write_config(tmp_path / "b", sliding_window=8192)
    assert shape_of(off).max_position == shape_of(long).max_position == 8192


def test_gguf_without_a_gate_or_with_a_window_is_refused(tmp_path):
    tensors = {"token_embd.weight": (100, 576), "blk.0.ffn_up.weight": (1536, 576)}
    with pytest.raises(ModelFileError, match="no gate in its feed-forward part"):
        shape_of(write_gguf(tmp_path / "m.gguf", tensors=tensors))
    with pytest.raises(ModelFileError, match="a window of 512 tokens"):
        shape_of(write_gguf(tmp_path / "m.gguf", GGUF | {"llama.attention.sliding_window": 512}))


def test_gguf_of_latent_attention_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match="latent attention"):
        shape_of(write_gguf(tmp_path / "m.gguf", GGUF | {"llama.attention.kv_lora_rank": 512}))


@pytest.mark.parametrize("cut", [3, 10, 30, 200, 400])
def test_gguf_cut_short_is_an_error_wherever_it_ends(tmp_path, cut):
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelFileError, match=r"m\.gguf"):
        shape_of(path)


def test_gguf_of_another_version(tmp_path):
    with pytest.raises(ModelFileError, match="version 1"):
        shape_of(write_gguf(tmp_path / "m.gguf", version=1))


def test_a_directory_without_config_json(tmp_path):
    with pytest.raises(ModelFileError, match=r"has no config\.json$"):
        shape_of(tmp_path)


def test_a_file_that_is_neither(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"hello")
    with pytest.raises(ModelFileError, match=r"neither a GGUF file nor a config.json"):
        shape_of(tmp_path / "x.bin")


@pytest.mark.model
def test_the_real_file_has_the_built_in_shape():
    shape = shape_of(smollm2_path())
    assert replace(shape, name="smollm2-135m") == MODELS["smollm2-135m"]


def test_the_reference_model_is_one_matrix():
    assert REFERENCE_7B.parameters == pytest.approx(6.74e9, rel=1e-6)
    assert [part.name for part in REFERENCE_7B.parts()] == ["weights"]
