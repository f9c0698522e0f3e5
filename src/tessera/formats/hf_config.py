"""`config.json` of the Hugging Face form <-> `spec.ModelConfig`.

Keys that are absent take the defaults of `transformers.LlamaConfig`; the sizes have no default and are named
when they are missing. Anything that would change the computation and is not supported is refused by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tessera.formats.errors import ConfigError, CorruptError, UnknownArchitectureError
from tessera.spec import ModelConfig, RopeConfig, SpecError

ARCHITECTURES: Final = ("LlamaForCausalLM",)

_SIZES: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_position": "max_position_embeddings",
}
_FIXED: Final = {
    "hidden_act": ("silu", ("silu", "swish")),
    "partial_rotary_factor": (1.0, (1.0,)),
    "use_sliding_window": (False, (False,)),
    "sliding_window": (None, (None,)),
}
"""Settings the models here do not vary: key, value where it is absent, values that mean the same."""

_ROPE_PARAMETERS: Final = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CorruptError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CorruptError(f"{path} holds a {type(raw).__name__}, not an object")
    return raw


def check_architecture(name: str, source: str) -> str:
    """Raises UnknownArchitectureError naming the known ones."""
    if name not in ARCHITECTURES:
        raise UnknownArchitectureError(
            f"{source} is a {name}: no such model here; known architectures: {', '.join(ARCHITECTURES)}"
        )
    return name


def parse_config(
    raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config.json"
) -> ModelConfig:
    """The model that `config.json` (`raw`) and `generation_config.json` describe.

    Raises ConfigError naming missing or unsupported keys, UnknownArchitectureError.
    """
    architectures = raw.get("architectures") or [raw.get("model_type", "nothing named")]
    architecture = check_architecture(str(architectures[0]), source)
    if missing := [key for key in _SIZES.values() if raw.get(key) is None]:
        raise ConfigError(f"{source} lacks {', '.join(missing)}")
    for key, (default, allowed) in _FIXED.items():
        if raw.get(key, default) not in allowed:
            raise ConfigError(f"{source}: {key} {raw[key]!r} is not supported, only {allowed[0]!r}")
    if wrong := [key for key in _SIZES.values() if type(raw[key]) is not int]:
        raise ConfigError(f"{source}: {wrong[0]} is {raw[wrong[0]]!r}, not an integer")
    sizes = {field: raw[key] for field, key in _SIZES.items()}
    heads = raw["num_attention_heads"]
    stop = dict(generation or {})
    try:
        return ModelConfig(
            architecture=architecture,
            **sizes,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            rope=_parse_rope(raw, source),
            bos_id=raw.get("bos_token_id"),
            eos_ids=_as_ids(stop.get("eos_token_id", raw.get("eos_token_id"))),
        )
    except (SpecError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _as_ids(value: object) -> tuple[int, ...]:
    """`eos_token_id` is one id, a list of ids, or null."""
    match value:
        case None:
            return ()
        case int():
            return (value,)
        case [*ids] if all(isinstance(i, int) for i in ids):
            return tuple(i for i in ids if isinstance(i, int))
        case _:
            raise ValueError(f"eos_token_id is {value!r}")


def _parse_rope(raw: Mapping[str, Any], source: str) -> RopeConfig:
    """Both forms: `rope_parameters` of transformers 5; `rope_theta` and `rope_scaling` before that."""
    settings = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = settings.get("rope_theta", raw.get("rope_theta", 10000.0))
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in _ROPE_PARAMETERS:
        raise ConfigError(
            f"{source}: rope type {kind!r} is not supported; known are {', '.join(_ROPE_PARAMETERS)}"
        )
    if missing := [key for key in _ROPE_PARAMETERS[kind] if key not in settings]:
        raise ConfigError(f"{source}: rope type {kind} lacks {', '.join(missing)}")
    if kind == "default":
        return RopeConfig(float(theta))
    if kind == "linear":
        return RopeConfig(float(theta), kind, float(settings["factor"]))
    return RopeConfig(
        float(theta),
        kind,
        float(settings["factor"]),
        float(settings["low_freq_factor"]),
        float(settings["high_freq_factor"]),
        int(settings["original_max_position_embeddings"]),
    )


def config_json(config: ModelConfig) -> dict[str, Any]:
    """Inverse of `parse_config`, readable by transformers 4 and 5."""
    rope: dict[str, Any] = {"rope_theta": config.rope.theta, "rope_type": config.rope.kind}
    values = {
        "factor": config.rope.factor,
        "low_freq_factor": config.rope.low_freq_factor,
        "high_freq_factor": config.rope.high_freq_factor,
        "original_max_position_embeddings": config.rope.original_max_position,
    }
    rope |= {key: values[key] for key in _ROPE_PARAMETERS[config.rope.kind]}
    return {
        "architectures": [config.architecture],
        "model_type": "llama",
        **{key: getattr(config, field) for field, key in _SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "rope_theta": config.rope.theta,
        "rope_scaling": None if config.rope.kind == "default" else rope,
        "rope_parameters": rope,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids),
    }
