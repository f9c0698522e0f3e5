"""Attention over a paged KV cache, bound to a kernel."""

from torch import Tensor

from tessera.kernels.ops import ATTENTION, AttentionProblem
from tessera.kernels.types import AttentionMetadata
from tessera.layers.rope import rope_tables
from tessera.layers.target import Target
from tessera.layers.types import Observer
from tessera.spec import Chain, ModelConfig


def attention_problem(target: Target, config: ModelConfig, kv: Chain) -> AttentionProblem:
    return AttentionProblem(
        target.device, config.num_heads, config.num_kv_heads, config.head_dim, kv, target.dtype
    )


class PagedAttention:
    """Rotary embedding, append to the cache as `kv` says, causal attention to what the cache then holds."""

    nbytes = 0

    def __init__(self, target: Target, config: ModelConfig, kv: Chain) -> None:
        problem = attention_problem(target, config, kv)
        kernel = ATTENTION.select(problem)
        self._bound = kernel.bind(problem, *rope_tables(config))
        self.kernel_ids = (kernel.id,)
        self.bytes_per_page = self._bound.bytes_per_page

    def allocate(self, num_pages: int) -> Tensor:
        return self._bound.allocate(num_pages)

    def __call__(
        self, qkv: Tensor, cache: Tensor | None, meta: AttentionMetadata, observer: Observer | None = None
    ) -> Tensor:
        """Raises TypeError without a cache or with an observer: only the float reference is observed."""
        if cache is None or observer is not None:
            raise TypeError("paged attention needs a cache and cannot be observed: build with paged=False")
        return self._bound(qkv, cache, meta)
