"""Scheduled tokens to tensors: token ids, where they stand, and which rows are sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tessera.engine.block_pool import BLOCK_SIZE, blocks_for
from tessera.engine.scheduler import ScheduledTokens
from tessera.kernels.types import AttentionMetadata


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input. token_ids int64 [T]; sample_rows int64 [R], the rows whose logits are needed."""

    token_ids: Tensor
    meta: AttentionMetadata
    sample_rows: Tensor


class BatchBuilder:
    """Builds batches into buffers made once: a batch is valid until the next one is built.

    On the CPU the tensors are views of the buffers, on other devices copies.
    """

    def __init__(
        self, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, device: torch.device
    ) -> None:
        self._device = device
        self._token_ids = np.zeros(max_num_batched_tokens, np.int64)
        self._positions = np.zeros(max_num_batched_tokens, np.int32)
        self._slots = np.zeros(max_num_batched_tokens, np.int64)
        self._starts = np.zeros(max_num_seqs + 1, np.int32)
        self._contexts = np.zeros(max_num_seqs, np.int32)
        self._tables = np.zeros(max_num_seqs * blocks_for(max_model_len), np.int32)
        self._rows = np.zeros(max_num_seqs, np.int64)

    def build(self, step: Sequence[ScheduledTokens]) -> Batch:
        width = max(blocks_for(tokens.start + tokens.count) for tokens in step)
        tables = self._tables[: len(step) * width].reshape(len(step), width)
        end = 0
        num_rows = 0
        for index, tokens in enumerate(step):
            begin, end = end, end + tokens.count
            self._fill(tokens, begin, end)
            blocks = blocks_for(tokens.start + tokens.count)
            tables[index, :blocks] = tokens.request.block_table[:blocks]
            tables[index, blocks:] = 0
            self._starts[index + 1] = end
            self._contexts[index] = tokens.start + tokens.count
            if tokens.samples:
                self._rows[num_rows] = end - 1
                num_rows += 1
        meta = AttentionMetadata(
            positions=self._tensor(self._positions[:end]),
            slot_mapping=self._tensor(self._slots[:end]),
            cu_seqlens=self._tensor(self._starts[: len(step) + 1]),
            context_lens=self._tensor(self._contexts[: len(step)]),
            block_tables=self._tensor(tables),
            max_query_len=max(tokens.count for tokens in step),
            max_context_len=max(tokens.start + tokens.count for tokens in step),
        )
        return Batch(self._tensor(self._token_ids[:end]), meta, self._tensor(self._rows[:num_rows]))

    def _fill(self, tokens: ScheduledTokens, begin: int, end: int) -> None:
        """Rows begin .. end - 1 of the per-token buffers."""
        request, start = tokens.request, tokens.start
        if tokens.count == 1:  # decode: plain integers are faster than arrays of one
            self._token_ids[begin] = request.token_ids[start]
            self._positions[begin] = start
            self._slots[begin] = request.block_table[start // BLOCK_SIZE] * BLOCK_SIZE + start % BLOCK_SIZE
            return
        self._token_ids[begin:end] = request.token_ids[start : start + tokens.count]
        positions = np.arange(start, start + tokens.count, dtype=np.int32)
        self._positions[begin:end] = positions
        table = np.asarray(request.block_table, np.int64)
        self._slots[begin:end] = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

    def _tensor(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.integer]]") -> Tensor:
        return torch.from_numpy(array).to(self._device)
