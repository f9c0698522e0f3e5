"""Embedding table bound to a kernel."""

from torch import Tensor

from tessera.kernels.ops import EMBEDDING, EmbeddingProblem
from tessera.layers.target import Target
from tessera.numerics.qtensor import QTensor


class Embedding:
    """token_ids int [T] -> [T, H] rows of a plain or quantized table."""

    def __init__(self, target: Target, table: QTensor) -> None:
        vocab, width = table.tile.shape
        problem = EmbeddingProblem(target.device, vocab, width, table.tile.chain, target.dtype)
        kernel = EMBEDDING.select(problem)
        self._bound = kernel.bind(problem, table)
        self.nbytes = self._bound.nbytes
        self.kernel_ids = (kernel.id,)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self._bound(token_ids)
