"""The shape of a decoder-only model: what `config.json` or GGUF metadata say, in one dataclass."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from tessera.spec.errors import SpecError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. `kind` is default, linear or llama3; the other fields are that kind's parameters."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer. `architecture` is the Hugging Face class name."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float = 1e-5
    tied_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: RopeConfig = RopeConfig()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
                 "head_dim", "max_position")  # fmt: skip
        for name in sizes:
            if getattr(self, name) <= 0:
                raise SpecError(f"{name} is {getattr(self, name)}: it must be positive")
        if self.num_heads % self.num_kv_heads:
            raise SpecError(f"{self.num_heads} query heads do not share {self.num_kv_heads} KV heads evenly")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def block_linears(self) -> dict[str, tuple[int, int]]:
        """{name inside a decoder block: (out_features, in_features)}, in the order they run."""
        h, i, q, kv = self.hidden_size, self.intermediate_size, self.q_size, self.kv_size
        return {
            "self_attn.q_proj": (q, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "mlp.gate_proj": (i, h),
            "mlp.up_proj": (i, h),
            "mlp.down_proj": (h, i),
        }

    def linears(self) -> dict[str, tuple[int, int]]:
        """The same for the whole model under canonical (Hugging Face) names; the head is not among them."""
        return {
            f"model.layers.{layer}.{name}": shape
            for layer in range(self.num_layers)
            for name, shape in self.block_linears().items()
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name and shape of every tensor of the unquantized model."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        biased = {"q_proj", "k_proj", "v_proj", "o_proj"} if self.attention_bias else set()
        biased |= {"gate_proj", "up_proj", "down_proj"} if self.mlp_bias else set()
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            for name, shape in self.block_linears().items():
                shapes[f"{prefix}{name}.weight"] = shape
                if name.rpartition(".")[2] in biased:
                    shapes[f"{prefix}{name}.bias"] = shape[:1]
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{norm}.weight"] = (self.hidden_size,)
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> Self:
        """Inverse of `to_json`. Raises SpecError for unknown or missing keys."""
        known = {f.name for f in fields(cls)}
        values = dict(raw)
        if unknown := values.keys() - known:
            raise SpecError(f"unknown model settings: {', '.join(sorted(unknown))}")
        rope = values.pop("rope", {})
        try:
            if not isinstance(rope, Mapping):
                raise TypeError(f"rope is {rope!r}")
            eos = values.pop("eos_ids", ())
            return cls(**values, rope=RopeConfig(**rope), eos_ids=tuple(eos))  # type: ignore[arg-type]
        except TypeError as error:
            raise SpecError(f"model settings do not fit: {error}") from error
