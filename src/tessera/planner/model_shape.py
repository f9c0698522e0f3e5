"""A decoder-only transformer as the planner prices it: matrices, their roles, and the KV cache's width."""

from dataclasses import dataclass
from typing import Literal, Self

from tessera.planner.errors import PlanError
from tessera.spec import ModelConfig

Role = Literal["linear", "expert", "router", "embedding", "head", "vector"]


@dataclass(frozen=True, slots=True)
class Part:
    """`count` equal matrices of `rows` x `columns` (columns are the reduction axis of a linear layer)."""

    name: str
    role: Role
    rows: int
    columns: int
    count: int

    @property
    def parameters(self) -> int:
        return self.rows * self.columns * self.count


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model. `ModelConfig` says what the engine can run; this also prices what it cannot yet.

    experts, experts_per_token   of a mixture's feed-forward part; 1 and 1 for a dense model
    qkv_bias, output_bias        biases of the attention's input and output matrices
    qk_norm                      a norm of head_dim on q and on k in each layer (Qwen3)
    uniform_parameters           for a model that is a number and not a list of matrices (the lecture's
                                 reference): all parameters alike, quantized and read by every step

    Raises PlanError for sizes that are not positive or heads that are not shared evenly.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: int = 1
    experts_per_token: int = 1
    uniform_parameters: int = 0

    def __post_init__(self) -> None:
        sizes = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "max_position",
                 "experts", "experts_per_token")  # fmt: skip
        for name in sizes:
            if getattr(self, name) <= 0:
                raise PlanError(
                    f"{self.name}: {name} is {getattr(self, name)}: it must be above 0", param=name
                )
        if self.heads % self.kv_heads:
            raise PlanError(
                f"{self.name}: {self.heads} query heads do not share {self.kv_heads} KV heads evenly: "
                f"take a divisor of {self.heads}",
                param="kv_heads",
            )
        if self.experts_per_token > self.experts:
            raise PlanError(f"{self.name}: {self.experts_per_token} of {self.experts} experts a token")

    @classmethod
    def from_config(cls, config: ModelConfig, name: str = "model") -> Self:
        """The shape of a model that the engine runs."""
        return cls(
            name,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_layers,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab_size,
            max_position=config.max_position,
            tied=config.tied_embeddings,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
        )

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def parts(self) -> tuple[Part, ...]:
        """Every matrix and vector of the model, tied embeddings once."""
        if self.uniform_parameters:
            rows = -(-self.uniform_parameters // self.hidden)
            return (Part("weights", "linear", rows, self.hidden, 1),)
        h, i, n = self.hidden, self.intermediate, self.layers
        mlp: Role = "expert" if self.experts > 1 else "linear"
        parts = [
            Part("embedding", "embedding", self.vocab, h, 1),
            Part("qkv", "linear", self.q_size + 2 * self.kv_size, h, n),
            Part("o", "linear", h, self.q_size, n),
            Part("router", "router", self.experts, h, n if self.experts > 1 else 0),
            Part("gate_up", mlp, 2 * i, h, n * self.experts),
            Part("down", mlp, h, i, n * self.experts),
            Part("norms", "vector", 1, h, 2 * n + 1),
            Part("biases", "vector", 1, self._bias_size(), n),
            Part("qk norms", "vector", 1, self.head_dim, 2 * n if self.qk_norm else 0),
            # A tied head is the embedding's matrix again: held once, but read whole by every step.
            Part("head", "head", self.vocab, h, 0 if self.tied else 1),
        ]
        return tuple(part for part in parts if part.parameters)

    def _bias_size(self) -> int:
        qkv = self.q_size + 2 * self.kv_size if self.qkv_bias else 0
        mlp = 2 * self.intermediate + self.hidden if self.mlp_bias else 0
        return qkv + mlp + (self.hidden if self.output_bias else 0)

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts())

    def linear_inputs(self) -> dict[str, int]:
        """Input size of each kind of quantized matrix, as `Recipe.check_layers` wants them."""
        return {p.name: p.columns for p in self.parts() if p.role in ("linear", "expert")}
