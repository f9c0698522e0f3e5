"""`Layers` on kernels: each piece of a model bound to the kernel its formats and the device select."""

from functools import cached_property

from tessera.kernels.errors import KernelArgumentError
from tessera.layers.embedding import Embedding
from tessera.layers.linear import Linear, LinearWeights, SideBySide, fuse
from tessera.layers.paged import PagedAttention
from tessera.layers.rows import RMSNorm, SiluMul
from tessera.layers.target import Target
from tessera.layers.types import EMBEDDING_NAME, HEAD_NAME, LinearLayer, Weights
from tessera.numerics.errors import QTensorError
from tessera.numerics.qtensor import QTensor
from tessera.spec import Chain, ModelConfig


class KernelLayers:
    """K and V are cached as `kv` says, or else as the weights do.

    Raises NoKernelError, with every candidate's reason, where no kernel runs a layer's formats.
    """

    def __init__(self, weights: Weights, target: Target, kv: Chain | None = None) -> None:
        self.weights = weights
        self.kv = kv or weights.kv_chain
        self.target = target
        self._stored = frozenset(weights.names())

    @property
    def config(self) -> ModelConfig:
        return self.weights.config

    def linear(self, *names: str) -> Linear | SideBySide:
        """Raises also KernelArgumentError, with the layers' names, where a kernel refuses the values."""
        try:
            return fuse(self.target, [self._linear_weights(name) for name in names])
        except (KernelArgumentError, QTensorError) as error:
            raise KernelArgumentError(f"{', '.join(names)}: {error}") from error

    def _linear_weights(self, name: str) -> LinearWeights:
        bias = f"{name}.bias"
        return LinearWeights(
            weight=self.weights.qtensor(f"{name}.weight"),
            bias=self.weights.tensor(bias) if bias in self._stored else None,
            activation=self.weights.activation(name),
        )

    def norm(self, name: str, feeds: LinearLayer | None = None) -> RMSNorm:
        quantize = feeds is not None and feeds.wants_rows
        weight = self.weights.tensor(f"{name}.weight")
        return RMSNorm(self.target, weight, self.config.norm_eps, quantize=quantize)

    def silu_mul(self, feeds: LinearLayer) -> SiluMul:
        return SiluMul(self.target, self.config.intermediate_size, quantize=feeds.wants_rows)

    def attention(self) -> PagedAttention:
        return PagedAttention(self.target, self.config, self.kv)

    @cached_property
    def _table(self) -> QTensor:
        """Kept as one object, so that a tied head packs the very same data."""
        return self.weights.qtensor(f"{EMBEDDING_NAME}.weight")

    def embedding(self) -> Embedding:
        return Embedding(self.target, self._table)

    def head(self) -> Linear | SideBySide:
        if not self.config.tied_embeddings:
            return self.linear(HEAD_NAME)
        activation = self.weights.activation(HEAD_NAME)
        return Linear(self.target, LinearWeights(self._table, None, activation))
