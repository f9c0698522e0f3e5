"""What a step's kernels read, filled on the host and sent to the device in one or two asynchronous copies."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tessera.engine.block_pool import BLOCK_SIZE, blocks_for
from tessera.engine.request import Request
from tessera.engine.rng import uniform
from tessera.engine.scheduler import ScheduledTokens
from tessera.kernels.types import AttentionMetadata

RING: Final = 3
"""Host buffers that may be on their way at once: one more than steps in flight."""

Array = NDArray[Any]
_NUMPY: Final[Mapping[torch.dtype, type]] = {
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float64: np.float64,
}


class Staged:
    """Arrays with fixed addresses on the device and a ring of page-locked copies on the host.

    `host()` gives the next copy to fill; `send()` enqueues its copy on the current stream.
    """

    def __init__(self, fields: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        spans, size = {}, 0
        for name, (dtype, shape) in fields.items():
            nbytes = prod(shape) * dtype.itemsize
            spans[name] = (size, size + nbytes)
            size += -(-nbytes // 16) * 16
        self._device = torch.zeros(size, dtype=torch.uint8, device="cuda")
        self._pinned = [torch.zeros(size, dtype=torch.uint8, pin_memory=True) for _ in range(RING)]
        self._sent = [torch.cuda.Event() for _ in range(RING)]  # type: ignore[no-untyped-call]
        self._next = 0
        self.device: dict[str, Tensor] = {}
        self._hosts: list[dict[str, Array]] = [{} for _ in range(RING)]
        for name, (start, stop) in spans.items():
            dtype, shape = fields[name]
            self.device[name] = self._device[start:stop].view(dtype).view(shape)
            for pinned, arrays in zip(self._pinned, self._hosts, strict=True):
                arrays[name] = pinned[start:stop].numpy().view(_NUMPY[dtype]).reshape(shape)

    def host(self) -> dict[str, Array]:
        """The arrays to fill next; waits where the device has not read what was in them."""
        self._sent[self._next].synchronize()
        return self._hosts[self._next]

    def send(self, nbytes: int | None = None) -> None:
        """Copies the arrays last given by `host`, or the first `nbytes` of them, to the device."""
        size = len(self._device) if nbytes is None else nbytes
        self._device[:size].copy_(self._pinned[self._next][:size], non_blocking=True)
        self._sent[self._next].record()
        self._next = (self._next + 1) % RING


class BlockTables:
    """Block tables of the step's sequences, a row each; only what has changed is written again."""

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        width = blocks_for(max_model_len)
        self._staged = Staged({"tables": (torch.int32, (max_num_seqs, width))})
        self._master = np.zeros((max_num_seqs, width), np.int32)
        self._rows: list[tuple[Request | None, list[int], int]] = [(None, [], 0)] * max_num_seqs
        self.device = self._staged.device["tables"]

    def send(self, step: Sequence[ScheduledTokens]) -> None:
        for row, tokens in enumerate(step):
            request = tokens.request
            owner, table, count = self._rows[row]
            # A request that was preempted has a new list: blocks of the old one mean nothing.
            if owner is not request or table is not request.block_table:
                count = 0
            blocks = request.block_table
            if len(blocks) > count:
                self._master[row, count : len(blocks)] = blocks[count:]
                self._rows[row] = (request, blocks, len(blocks))
        self._staged.host()["tables"][: len(step)] = self._master[: len(step)]
        self._staged.send(self._master[: len(step)].nbytes)


class StepInputs:
    """Inputs of steps of up to `max_tokens` tokens and `max_num_seqs` sequences, over shared block tables.

    ids int64 [T] may hold -1 - row for what the step before drew in that row (`resolve_tokens`).
    draws float64 [S, 4] are those of `sample_rows`; sample_rows int64 [S] say which tokens' logits they need.
    """

    def __init__(self, max_tokens: int, max_num_seqs: int, tables: BlockTables) -> None:
        self.tables = tables
        self._staged = Staged(
            {
                "ids": (torch.int64, (max_tokens,)),
                "slots": (torch.int64, (max_tokens,)),
                "draws": (torch.float64, (max_num_seqs, 4)),
                "sample_rows": (torch.int64, (max_num_seqs,)),
                "positions": (torch.int32, (max_tokens,)),
                "contexts": (torch.int32, (max_num_seqs,)),
                "starts": (torch.int32, (max_num_seqs + 1,)),
            }
        )
        self.device = self._staged.device

    def send(self, step: Sequence[ScheduledTokens], drawn_rows: Mapping[str, int], padded: int) -> int:
        """Fills the inputs of `step` followed by empty sequences of one token up to `padded` sequences.

        `drawn_rows`: row of each request in what the step before drew. Returns how many rows sample.
        """
        arrays = self._staged.host()
        end = sampled = 0
        for index, tokens in enumerate(step):
            begin, end = end, end + tokens.count
            _fill_tokens(arrays, tokens, begin, end, drawn_rows)
            arrays["starts"][index + 1] = end
            arrays["contexts"][index] = tokens.start + tokens.count
            if tokens.samples:
                arrays["sample_rows"][sampled] = end - 1
                arrays["draws"][sampled] = draw_of(tokens.request)
                sampled += 1
        count, pad = len(step), padded - len(step)
        if pad > 0:
            arrays["ids"][end : end + pad] = 0
            arrays["slots"][end : end + pad] = -1
            arrays["positions"][end : end + pad] = 0
            arrays["contexts"][count:padded] = 0
            arrays["starts"][count + 1 : padded + 1] = np.arange(end + 1, end + pad + 1)
            arrays["draws"][sampled : sampled + pad] = (0, 0, 1, 0)
        self._staged.send()
        self.tables.send(step)
        return sampled

    def metadata(
        self, num_tokens: int, num_seqs: int, max_query_len: int, max_context_len: int
    ) -> AttentionMetadata:
        """Views of the device's arrays."""
        return AttentionMetadata(
            positions=self.device["positions"][:num_tokens],
            slot_mapping=self.device["slots"][:num_tokens],
            cu_seqlens=self.device["starts"][: num_seqs + 1],
            context_lens=self.device["contexts"][:num_seqs],
            block_tables=self.tables.device[:num_seqs],
            max_query_len=max_query_len,
            max_context_len=max_context_len,
        )


def draw_of(request: Request) -> tuple[float, float, float, float]:
    """(temperature, top_k, top_p, u) of the next token, with u a function of seed and position alone."""
    sampling = request.sampling
    if sampling.greedy:
        return 0.0, 0.0, 1.0, 0.0
    u = uniform(request.seed, request.num_tokens)
    return sampling.temperature, float(sampling.top_k), sampling.top_p, u


def _fill_tokens(
    arrays: Mapping[str, Array],
    tokens: ScheduledTokens,
    begin: int,
    end: int,
    drawn_rows: Mapping[str, int],
) -> None:
    """Rows begin .. end - 1 of the arrays per token."""
    request, start = tokens.request, tokens.start
    if tokens.count == 1:  # decode: plain integers are faster than arrays of one
        arrays["ids"][begin] = _known(request, start, drawn_rows)
        arrays["positions"][begin] = start
        block = request.block_table[start // BLOCK_SIZE]
        arrays["slots"][begin] = block * BLOCK_SIZE + start % BLOCK_SIZE
        return
    stop = start + tokens.count
    arrays["ids"][begin:end] = request.token_ids[start:stop]
    arrays["ids"][end - 1] = _known(request, stop - 1, drawn_rows)
    positions = np.arange(start, stop, dtype=np.int32)
    arrays["positions"][begin:end] = positions
    table = np.asarray(request.block_table, np.int64)
    arrays["slots"][begin:end] = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE


def _known(request: Request, position: int, drawn_rows: Mapping[str, int]) -> int:
    """The token at `position`, or the reference to the row it was drawn in. Only the newest can be unseen."""
    token = request.token_ids[position]
    return token if token >= 0 else -1 - drawn_rows[request.id]
