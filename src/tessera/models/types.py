"""What the engine and the evaluator see of a model, whatever its family."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tessera.kernels.types import AttentionMetadata
from tessera.spec import ModelConfig


class Model(Protocol):
    """Token ids to logits. `LlamaBlock` and `Llama` document shapes."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def cache_bytes_per_page(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

    def forward(
        self, token_ids: Tensor, meta: AttentionMetadata, caches: Sequence[Tensor] | None = None
    ) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...
    def allocate_caches(self, num_pages: int) -> list[Tensor]: ...
    def kernel_ids(self) -> tuple[str, ...]: ...
