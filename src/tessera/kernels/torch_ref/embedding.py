"""Embedding look-up in torch, over plain and quantized tables."""

from torch import Tensor

from tessera.kernels.ops import EmbeddingProblem
from tessera.kernels.registry import YES, Verdict, no, runs
from tessera.numerics.qtensor import QTensor
from tessera.spec import AlgebraError, Qtile


class _BoundEmbedding:
    def __init__(self, problem: EmbeddingProblem, table: QTensor) -> None:
        self._table = table
        self._dtype = problem.dtype

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def __call__(self, token_ids: Tensor) -> Tensor:
        runs[TorchEmbedding.id] += 1
        return self._table.take_rows(token_ids.long()).dequantize(self._dtype)


class TorchEmbedding:
    """Gathers rows, then dequantizes those."""

    id = "torch_embedding"

    def can_implement(self, problem: EmbeddingProblem) -> Verdict:
        if problem.device.kind != "cpu":
            return no("runs on the CPU only")
        try:
            Qtile((problem.vocab, problem.width), problem.table).take_rows(1)
        except AlgebraError as error:
            return no(str(error))
        return YES

    def bind(self, problem: EmbeddingProblem, table: QTensor) -> _BoundEmbedding:
        return _BoundEmbedding(problem, table)
