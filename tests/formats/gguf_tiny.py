"""Tiny GGUF files, written by the `gguf` library with llama.cpp's conventions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from torch import Tensor

from tessera.spec import ModelConfig
from tiny import CHAT_TEMPLATE, MERGES, SPECIAL_TOKENS, byte_tokenizer

F32 = GGMLQuantizationType.F32

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in NAMES:
        return f"{NAMES[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from half-split to interleaved pairs, as llama.cpp's converter stores Q and K."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def metadata_of(config: ModelConfig) -> dict[str, Any]:
    """Every key of a llama file, tokenizer included; tests change or drop some."""
    tokens = sorted(byte_tokenizer().get_vocab().items(), key=lambda item: item[1])
    kinds = [TokenType.CONTROL if t in SPECIAL_TOKENS else TokenType.NORMAL for t, _ in tokens]
    return {
        "llama.block_count": config.num_layers,
        "llama.context_length": config.max_position,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_heads,
        "llama.attention.head_count_kv": config.num_kv_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": config.rope.theta,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [t for t, _ in tokens],
        "tokenizer.ggml.token_type": [int(k) for k in kinds],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": config.bos_id,
        "tokenizer.ggml.eos_token_id": config.eos_ids[0],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def write_gguf(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    kinds: Mapping[str, GGMLQuantizationType] | None = None,
    changes: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
) -> Path:
    """A model by canonical tensors; `kinds` names block types, `changes` metadata (None drops a key)."""
    writer = GGUFWriter(path, architecture)
    for key, value in (metadata_of(config) | dict(changes or {})).items():
        _add(writer, key, value)
    for name, tensor in tensors.items():
        kind = (kinds or {}).get(name, F32)
        values = tensor.float().numpy()
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        values = interleaved(values, heads) if heads else values
        if kind == F32:
            writer.add_tensor(gguf_name(name), values)
        else:
            writer.add_tensor(gguf_name(name), quantize(values, kind), raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
