"""A model's shape from what a user has: a built-in name, a directory with config.json, or a GGUF file.

Standard library only: neither weights nor vocabularies are read.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tessera.planner.builtin import MODELS
from tessera.planner.errors import ModelFileError, PlanError, UnknownModelError
from tessera.planner.gguf_header import GGUF_MAGIC, read_gguf_header
from tessera.planner.model_shape import ModelShape
from tessera.planner.quantity import positive
from tessera.spec import ModelConfig, Recipe

Source = str | Path | ModelConfig | ModelShape

_SIZES: Final = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "max_position": "max_position_embeddings",
}
_REFUSED: Final = {
    "kv_lora_rank": "multi-head latent attention",
    "sliding_window_pattern": "layers with a sliding window",
    "linear_num_key_heads": "linear attention",
    "n_shared_experts": "shared experts",
    "moe_intermediate_size": "experts of a size of their own",
}
"""Keys of config.json that change what is stored or read, and that no formula here covers."""

_UNGATED: Final = (
    "bloom",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "mpt",
    "opt",
    "phi",
    "starcoder2",
)
"""Model types whose feed-forward part has two matrices and no gate."""


def shape_of(source: Source, kv_heads: int | None = None) -> ModelShape:
    """The shape of `source`, with `kv_heads` in place of its own where given.

    Raises UnknownModelError, ModelFileError, PlanError.
    """
    if isinstance(source, ModelShape):
        shape = source
    elif isinstance(source, ModelConfig):
        shape = ModelShape.from_config(source)
    else:
        shape = _named(source)
    if kv_heads is None:
        return shape
    positive(kv_heads=kv_heads)
    return replace(shape, kv_heads=kv_heads)


def stored_recipe(source: Source) -> Recipe | None:
    """The recipe of one of our checkpoints; None for anything else. Raises ModelFileError, RecipeError."""
    if (
        not isinstance(source, str | Path)
        or not (path := Path(source).expanduser() / "config.json").is_file()
    ):
        return None
    match _read_json(path):
        case {"quantization_config": {"quant_method": "tessera", "recipe": {"name": str(name), **rest}}}:
            return Recipe.parse(name, ragged_tail=rest.get("ragged_tail") is True)
        case _:
            return None


def _named(source: str | Path) -> ModelShape:
    name = str(source).lower()
    if name in MODELS:
        return MODELS[name]
    path = Path(source).expanduser()
    if path.is_dir():
        return from_config_json(_read_json(path / "config.json"), str(path / "config.json"), path.name)
    if path.is_file():
        return _from_file(path)
    near = get_close_matches(name.rpartition("/")[2], MODELS, n=3, cutoff=0.5)
    nearest = f"nearest: {', '.join(near)}; " if near else ""
    raise UnknownModelError(
        f"no model {str(source)!r}, and no such directory or file: {nearest}known by name: "
        f"{', '.join(MODELS)}",
        param="model",
    )


def _from_file(path: Path) -> ModelShape:
    with open(path, "rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic == GGUF_MAGIC:
        return from_gguf(path)
    if path.suffix == ".json":
        return from_config_json(_read_json(path), str(path), path.parent.name or path.stem)
    raise ModelFileError(f"{path} is neither a GGUF file nor a config.json")


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path.parent} has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path} holds a {type(raw).__name__}, not an object")
    return raw


def from_config_json(raw: Mapping[str, Any], where: str, name: str) -> ModelShape:
    """The shape that a Hugging Face config.json describes. Raises ModelFileError naming missing keys."""
    if isinstance(inner := raw.get("text_config"), dict):
        raw = inner
    kind = str(raw.get("model_type", ""))
    if missing := [key for key in _SIZES.values() if key not in raw]:
        raise ModelFileError(f"{where} lacks {', '.join(missing)}")
    if refused := [f"{key} ({why})" for key, why in _REFUSED.items() if raw.get(key)]:
        raise ModelFileError(f"{where} has {', '.join(refused)}, which is not priced here")
    if kind in _UNGATED:
        raise ModelFileError(
            f"{where} is of type {kind}, which has no gate in its feed-forward part: not priced here"
        )
    sizes = {field: raw[key] for field, key in _SIZES.items()}
    heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    sizes["kv_heads"] = raw.get("num_key_value_heads") or heads
    sizes["experts"] = raw.get("num_local_experts", raw.get("num_experts")) or 1
    sizes["experts_per_token"] = raw.get("num_experts_per_tok") or 1 if sizes["experts"] != 1 else 1
    for key, value in {**sizes, "head_dim": raw.get("head_dim") or 1}.items():
        if type(value) is not int or value <= 0:
            raise ModelFileError(f"{where}: {_SIZES.get(key, key)} is {value!r}, not a positive integer")
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    _check_window(window, raw["max_position_embeddings"], where)
    bias = bool(raw.get("attention_bias", kind == "qwen2"))
    try:
        return ModelShape(
            name,
            head_dim=raw.get("head_dim") or hidden // heads,
            tied=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=bias,
            output_bias=bias and kind != "qwen2",
            mlp_bias=bool(raw.get("mlp_bias", False)),
            qk_norm=kind.startswith("qwen3"),
            **sizes,
        )
    except PlanError as error:
        raise ModelFileError(f"{where}: {error}") from error


def _check_window(window: object, positions: int, where: str) -> None:
    """Raises ModelFileError where attention sees less than the whole context: the cache would be smaller."""
    if isinstance(window, int) and 0 < window < positions:
        raise ModelFileError(f"{where}: attention within a window of {window} tokens is not priced here")


def from_gguf(path: Path) -> ModelShape:
    """The shape that a GGUF header describes. Raises ModelFileError naming missing keys."""
    header = read_gguf_header(path)
    kind = header.metadata.get("general.architecture")
    if not isinstance(kind, str):
        raise ModelFileError(f"{path} lacks general.architecture")
    keys = {
        "hidden": "embedding_length",
        "intermediate": "feed_forward_length",
        "layers": "block_count",
        "heads": "attention.head_count",
        "max_position": "context_length",
    }
    if missing := [f"{kind}.{key}" for key in keys.values() if f"{kind}.{key}" not in header.metadata]:
        raise ModelFileError(f"{path} lacks {', '.join(missing)}")
    if f"{kind}.attention.kv_lora_rank" in header.metadata:
        raise ModelFileError(f"{path} has multi-head latent attention, which is not priced here")

    def integer(key: str, default: int | None = None) -> int:
        value = header.metadata.get(f"{kind}.{key}", default)
        if type(value) is not int or value <= 0:
            raise ModelFileError(f"{path}: {kind}.{key} is {value!r}, not a positive integer")
        return value

    sizes = {field: integer(key) for field, key in keys.items()}
    _check_window(header.metadata.get(f"{kind}.attention.sliding_window"), sizes["max_position"], str(path))
    if "blk.0.ffn_up.weight" in header.shapes and "blk.0.ffn_gate.weight" not in header.shapes:
        raise ModelFileError(f"{path} has no gate in its feed-forward part: not priced here")
    embedding = header.shapes.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{path} lacks the tensor token_embd.weight")
    try:
        return ModelShape(
            path.stem,
            kv_heads=integer("attention.head_count_kv", sizes["heads"]),
            head_dim=integer("attention.key_length", sizes["hidden"] // sizes["heads"]),
            vocab=embedding[0],
            tied="output.weight" not in header.shapes,
            qkv_bias="blk.0.attn_q.bias" in header.shapes,
            output_bias="blk.0.attn_output.bias" in header.shapes,
            mlp_bias="blk.0.ffn_up.bias" in header.shapes,
            qk_norm="blk.0.attn_q_norm.weight" in header.shapes,
            experts=integer("expert_count", 1) if header.metadata.get(f"{kind}.expert_count") else 1,
            experts_per_token=integer("expert_used_count", 1),
            **sizes,
        )
    except PlanError as error:
        raise ModelFileError(f"{path}: {error}") from error
