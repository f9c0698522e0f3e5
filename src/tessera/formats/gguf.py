"""GGUF files as checkpoints.

Weights come as floats (float32 where the file holds blocks), which every kernel and pass takes; `stored`
gives the file's own grid. llama.cpp keeps the rows of Q and K in the order of its interleaved rotary
embedding; they are put back into the half-split order of the canonical layout here.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tessera.formats.base import FloatCheckpoint, check_tensors
from tessera.formats.errors import ConfigError, ForeignFormatError, UnknownArchitectureError
from tessera.formats.gguf_blocks import BLOCK_TYPES
from tessera.formats.gguf_file import GGUFFile
from tessera.formats.tokenizer import Tokenizer
from tessera.formats.tokenizer_gguf import tokenizer_from_gguf
from tessera.numerics.qtensor import QTensor
from tessera.numerics.rope import inverse_frequencies
from tessera.spec import F32, Chain, ModelConfig, Qtile, RopeConfig, SpecError

ARCHITECTURES: Final = {"llama": "LlamaForCausalLM"}

_TOP: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_ROPE_FACTORS: Final = "rope_freqs.weight"
_LLAMA3_FACTORS: Final = (8.0, 32.0)
"""Llama 3.1 and 3.2: the file holds only the frequency factors that follow from these."""


class GGUFCheckpoint(FloatCheckpoint):
    """Raises FormatError (see `errors.py`) where the file or its metadata cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GGUFFile(path)
        self.config = _config(self.file)
        self._sources = {
            canonical_name(name): info for name, info in self.file.tensors.items() if name != _ROPE_FACTORS
        }
        check_tensors(str(path), {name: info.shape for name, info in self._sources.items()}, self.config)
        for name, info in self._sources.items():
            if info.kind not in BLOCK_TYPES:
                raise ForeignFormatError(
                    f"{path}: {name} is stored as {info.kind.name}, which is not read; "
                    f"{', '.join(kind.name for kind in BLOCK_TYPES)} are"
                )

    def tile(self, name: str) -> Qtile:
        chain = BLOCK_TYPES[self._sources[name].kind].chain
        return Qtile(self._sources[name].shape, chain if chain.is_plain else Chain(F32))

    def tensor(self, name: str) -> Tensor:
        stored = self.stored(name)
        return stored.codes if stored.chain.is_plain else stored.dequantize()

    def stored(self, name: str) -> QTensor:
        """The grid the file holds (codes, scales and minima in groups of 32), bit for bit."""
        info = self._sources[name]
        raw = self.file.raw(info)
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}
        if count := heads.get(name.split(".")[-2]):
            raw = raw.reshape(info.shape[0], -1)[_half_split_rows(info.shape[0], count)]
        block_type = BLOCK_TYPES[info.kind]
        return block_type.read(raw, Qtile(info.shape, block_type.chain))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(self.file.metadata, str(self.path))

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def files(self) -> dict[str, bytes]:
        return self._tokenizer.files()


def canonical_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; names that are not known stay as they are."""
    if name in _TOP:
        return _TOP[name]
    match name.split("."):
        case ["blk", layer, part, kind] if part in _BLOCK:
            return f"model.layers.{layer}.{_BLOCK[part]}.{kind}"
        case _:
            return name


def _half_split_rows(rows: int, heads: int) -> Tensor:
    """Rows in file order (pairs side by side within a head) -> int64 [rows] index into them."""
    return torch.arange(rows).reshape(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)


def _config(file: GGUFFile) -> ModelConfig:
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise UnknownArchitectureError(
            f"{file.path} has architecture {name!r}: no such model here; known in GGUF: "
            f"{', '.join(ARCHITECTURES)}"
        )
    keys = _Keys(file.metadata, name, file.path)
    if keys.get("expert_count", 0):
        raise ConfigError(f"{file.path} is a mixture of {keys.get('expert_count', 0)} experts: not supported")
    hidden, heads = keys.need("embedding_length"), keys.need("attention.head_count")
    head_dim = keys.get("attention.key_length", hidden // max(1, heads))
    if (rotated := keys.get("rope.dimension_count", head_dim)) != head_dim:
        raise ConfigError(f"{file.path} rotates {rotated} of {head_dim} dimensions: not supported")
    names = file.tensors.keys()
    eos = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    try:
        return ModelConfig(
            architecture=ARCHITECTURES[name],
            vocab_size=_vocab_size(file),
            hidden_size=hidden,
            intermediate_size=keys.need("feed_forward_length"),
            num_layers=keys.need("block_count"),
            num_heads=heads,
            num_kv_heads=keys.get("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_position=keys.need("context_length"),
            norm_eps=keys.need("attention.layer_norm_rms_epsilon", float),
            tied_embeddings="output.weight" not in names,
            attention_bias=_any_bias(names, ("attn_q", "attn_k", "attn_v", "attn_output")),
            mlp_bias=_any_bias(names, ("ffn_gate", "ffn_up", "ffn_down")),
            rope=_rope(file, keys, head_dim),
            bos_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        )
    except SpecError as error:
        raise ConfigError(f"{file.path}: {error}") from error


class _Keys:
    """Metadata under the architecture's prefix."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, path: Path) -> None:
        self.metadata, self.architecture, self.path = metadata, architecture, path

    def get(self, key: str, default: Any) -> Any:
        """The value, of the type of `default`, which stands for a key that is absent."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if type(value) is not type(default):
            raise ConfigError(
                f"{self.path}: {self.architecture}.{key} is {value!r}, not {type(default).__name__}"
            )
        return value

    def need(self, key: str, kind: type = int) -> Any:
        if f"{self.architecture}.{key}" not in self.metadata:
            raise ConfigError(f"{self.path} lacks the key {self.architecture}.{key}")
        return self.get(key, kind())


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path} has no token_embd.weight: not a language model")
    return embedding.shape[0]


def _any_bias(names: Iterable[str], parts: tuple[str, ...]) -> bool:
    return any(name == f"blk.0.{part}.bias" for part in parts for name in names)


def _rope(file: GGUFFile, keys: _Keys, head_dim: int) -> RopeConfig:
    theta = keys.get("rope.freq_base", 10000.0)
    kind = keys.get("rope.scaling.type", "none")
    if _ROPE_FACTORS in file.tensors:
        return _llama3(file, theta, head_dim)
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", keys.need("rope.scaling.factor", float))
    raise ConfigError(f"{file.path}: rope scaling {kind!r} is not supported; none, linear and llama3 are")


def _llama3(file: GGUFFile, theta: float, head_dim: int) -> RopeConfig:
    """The parameters whose frequency factors the file holds."""
    info = file.tensors[_ROPE_FACTORS]
    stored = file.raw(info).view(torch.float32).reshape(-1)
    for factor in _LLAMA3_FACTORS:
        rope = RopeConfig(theta, "llama3", factor)
        expected = inverse_frequencies(RopeConfig(theta), head_dim) / inverse_frequencies(rope, head_dim)
        if stored.shape == expected.shape and torch.allclose(stored, expected, rtol=1e-4):
            return rope
    raise ConfigError(f"{file.path}: {_ROPE_FACTORS} are not those of Llama 3.1 or 3.2: not supported")
