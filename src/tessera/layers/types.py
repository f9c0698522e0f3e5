"""What a model needs from its weights and its layers.

T tokens of a step, H hidden size, D head dimension, I intermediate size.
"""

from collections.abc import Callable
from typing import Final, Protocol

from torch import Tensor

from tessera.kernels.types import Activation, AttentionMetadata
from tessera.numerics.qtensor import QTensor
from tessera.spec import Chain, ModelConfig

EMBEDDING_NAME: Final = "model.embed_tokens"
HEAD_NAME: Final = "lm_head"

Observer = Callable[[str, Tensor], None]
"""Called with the name of a point in a block and the float tensor there (calibration)."""


class Weights(Protocol):
    """Named tensors with their formats. Checkpoints of `tessera.formats` are this."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def kv_chain(self) -> Chain:
        """Format of K and V in the cache."""
        ...

    def names(self) -> list[str]: ...
    def tensor(self, name: str) -> Tensor:
        """Float values, dequantized where stored quantized."""
        ...

    def qtensor(self, name: str) -> QTensor:
        """As stored; plain tensors come as a chain without steps."""
        ...

    def activation(self, name: str) -> Chain:
        """Input format of the linear layer `name` (a module's name, without `.weight`)."""
        ...


class Layer(Protocol):
    """Common to all layers."""

    @property
    def nbytes(self) -> int:
        """Bytes of weights and parameters held."""
        ...

    @property
    def kernel_ids(self) -> tuple[str, ...]:
        """Ids of the kernels it runs; none for plain torch."""
        ...


class LinearLayer(Layer, Protocol):
    """x [T, K] -> y [T, N]. `wants_rows` says that int8 rows save it quantizing floats itself."""

    @property
    def wants_rows(self) -> bool: ...

    def __call__(self, x: Activation) -> Tensor: ...


class NormLayer(Layer, Protocol):
    """(x [T, H], residual [T, H] or None) -> (RMSNorm(x + residual), x + residual)."""

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Activation, Tensor]: ...


class SiluMulLayer(Layer, Protocol):
    """gate_up [T, 2 I] -> silu(gate) * up [T, I]."""

    def __call__(self, gate_up: Tensor) -> Activation: ...


class AttentionLayer(Layer, Protocol):
    """qkv [T, (q heads + 2 kv heads) * D] before rotation -> [T, q heads * D].

    `cache` is one layer's pages, or None where attention is dense.
    """

    @property
    def bytes_per_page(self) -> int: ...

    def allocate(self, num_pages: int) -> Tensor: ...

    def __call__(
        self, qkv: Tensor, cache: Tensor | None, meta: AttentionMetadata, observer: Observer | None = None
    ) -> Tensor: ...


class EmbeddingLayer(Layer, Protocol):
    """token_ids int [T] -> [T, H]."""

    def __call__(self, token_ids: Tensor) -> Tensor: ...


class Layers(Protocol):
    """Makes the layers of one model from its weights. Names are canonical module names."""

    @property
    def config(self) -> ModelConfig: ...

    def linear(self, *names: str) -> LinearLayer:
        """One layer whose outputs are those of `names` side by side (fused where their formats allow)."""
        ...

    def norm(self, name: str, feeds: LinearLayer | None = None) -> NormLayer:
        """A norm in the form that the layer it `feeds` wants; floats where None."""
        ...

    def silu_mul(self, feeds: LinearLayer) -> SiluMulLayer: ...
    def attention(self) -> AttentionLayer: ...
    def embedding(self) -> EmbeddingLayer: ...
    def head(self) -> LinearLayer:
        """Hidden rows to logits. Tied to the embedding where the model says so, and then stored once."""
        ...


def observe(observer: Observer | None, point: str, x: Activation) -> None:
    """Hand `x` to the observer, if any. Raises TypeError for int8 rows: only floats are observed."""
    if observer is None:
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"{point} holds int8 rows: observe the float reference (LlamaBlock.from_floats)")
    observer(point, x)
