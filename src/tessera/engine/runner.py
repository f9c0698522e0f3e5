"""The model, its paged caches, and one step through both."""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from tessera.engine.batch import BatchBuilder
from tessera.engine.sampler import Draw, sample
from tessera.engine.scheduler import ScheduledTokens
from tessera.models.types import Model

LOGIT_ROWS: Final = 128
"""Rows of logits held at once when a whole prompt's are asked for."""


class ModelRunner:
    """Runs scheduled steps on one model whose caches have `num_blocks` pages."""

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model
        self.caches = model.allocate_caches(num_blocks)
        self._batches = BatchBuilder(
            max_num_seqs, max_num_batched_tokens, max_model_len, torch.device(device)
        )

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @torch.inference_mode()
    def run(self, step: Sequence[ScheduledTokens]) -> list[int]:
        """Next token of each entry that `samples`, in order; NOT_FINITE where its logits are broken."""
        batch = self._batches.build(step)
        hidden = self.model.forward(batch.token_ids, batch.meta, self.caches)
        draws = [
            Draw(tokens.request.sampling, tokens.request.seed, tokens.request.num_tokens)
            for tokens in step
            if tokens.samples
        ]
        if not draws:
            return []
        rows = hidden if len(draws) == len(hidden) else hidden[batch.sample_rows]
        return sample(self.model.logits(rows), draws)

    @torch.inference_mode()
    def logits(self, step: Sequence[ScheduledTokens]) -> Iterator[Tensor]:
        """float32 [<= LOGIT_ROWS, vocab] pieces: logits of every token of `step`, in order."""
        batch = self._batches.build(step)
        hidden = self.model.forward(batch.token_ids, batch.meta, self.caches)
        for rows in torch.split(hidden, LOGIT_ROWS):
            yield self.model.logits(rows)
