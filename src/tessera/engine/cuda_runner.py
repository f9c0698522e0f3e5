"""Steps on a CUDA device: decode replays graphs, the rest is launched; tokens are drawn on the device."""

import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from tessera.engine.cuda_inputs import RING, BlockTables, StepInputs
from tessera.engine.runner import ModelRunner
from tessera.engine.scheduler import ScheduledTokens
from tessera.kernels.cuda.arguments import prepare_announced
from tessera.kernels.cuda.launch import prepare
from tessera.kernels.cuda.sampling import resolve_kernel, resolve_tokens, sample_kernel, sample_rows
from tessera.models.types import Model

log = logging.getLogger(__name__)

SMALL_SIZES: Final = (1, 2, 4, 8)
SIZE_STEP: Final = 16


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes that have a graph, largest first: 1, 2, 4, 8, multiples of 16, and the largest there is.

    A batch is padded to the next one: at most half of its rows below 16, at most 15 rows above.
    """
    sizes = {n for n in SMALL_SIZES if n < max_num_seqs} | set(range(SIZE_STEP, max_num_seqs, SIZE_STEP))
    return sorted(sizes | {max_num_seqs}, reverse=True)


@dataclass(frozen=True, slots=True)
class CudaPending:
    """A step on its way: `tokens` [R] in page-locked memory are valid once `event` has happened."""

    event: torch.cuda.Event
    host: Tensor
    count: int

    def tokens(self) -> list[int]:
        self.event.synchronize()
        drawn: list[int] = self.host[: self.count].tolist()
        return drawn


class CudaRunner(ModelRunner):
    """Runs one model on the current CUDA device. Call `warm_up` before the first step.

    Steps are ordered by the current stream, so a step may be submitted before the last one has ended.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: torch.device | str = "cuda",
    ) -> None:
        super().__init__(
            model,
            num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            device=device,
        )
        self.max_num_seqs = max_num_seqs
        tables = BlockTables(max_num_seqs, max_model_len)
        self._decode = StepInputs(max_num_seqs, max_num_seqs, tables)
        self._mixed = StepInputs(max_num_batched_tokens, max_num_seqs, tables)
        self._drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device="cuda")
        self._drawn_rows: dict[str, int] = {}
        self._hosts = [torch.zeros(max_num_seqs, dtype=torch.int64, pin_memory=True) for _ in range(RING)]
        self._events = [torch.cuda.Event() for _ in range(RING)]  # type: ignore[no-untyped-call]
        self._turn = 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    @torch.inference_mode()
    def warm_up(self) -> dict[str, float]:
        """Compiles every kernel, then captures a graph for each decode size. Seconds of each phase."""
        started = time.perf_counter()
        count = prepare_announced()
        prepare([sample_kernel(), resolve_kernel()])
        self._mixed.send([], {}, 1)
        self._forward_mixed(2, 1, 1, 2, 2)
        torch.cuda.synchronize()
        compiled = time.perf_counter()
        log.info("%d kernels ready in %.2f s", count + 2, compiled - started)
        self.capture()
        gc.collect()
        gc.freeze()  # collections would otherwise walk the whole model again and again
        return {"compile kernels": compiled - started, "capture graphs": time.perf_counter() - compiled}

    def capture(self) -> None:
        """Graphs share one memory pool; the largest comes first, so that the others fit in its memory."""
        self._decode.send([], {}, self.max_num_seqs)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for size in graph_sizes(self.max_num_seqs):
                self._forward_decode(size)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                    self._forward_decode(size)
                self._pool = self._pool or graph.pool()
                self._graphs[size] = graph
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    def run(self, step: Sequence[ScheduledTokens]) -> list[int]:
        return self.submit(step).tokens()

    @torch.inference_mode()
    def submit(self, step: Sequence[ScheduledTokens]) -> CudaPending:
        """Launch `step`. A negative last token stands for what the step before drew for that request."""
        if all(tokens.count == 1 and tokens.samples for tokens in step):
            size = min(n for n in self._graphs if n >= len(step))
            sampled = self._decode.send(step, self._drawn_rows, size)
            self._graphs[size].replay()
        else:
            sampled = self._mixed.send(step, self._drawn_rows, len(step))
            self._forward_mixed(
                sum(tokens.count for tokens in step),
                len(step),
                sampled,
                max(tokens.count for tokens in step),
                max(tokens.start + tokens.count for tokens in step),
            )
        requests = [tokens.request.id for tokens in step if tokens.samples]
        self._drawn_rows = {name: row for row, name in enumerate(requests)}
        return self._fetch(len(requests))

    def _fetch(self, count: int) -> CudaPending:
        host, event = self._hosts[self._turn], self._events[self._turn]
        self._turn = (self._turn + 1) % RING
        host[:count].copy_(self._drawn[:count], non_blocking=True)
        event.record()
        return CudaPending(event, host, count)

    def _forward_decode(self, size: int) -> None:
        inputs = self._decode
        tokens = resolve_tokens(inputs.device["ids"][:size], self._drawn)
        # The kernels read lengths on the device; the longest context is none of this launch's business.
        hidden = self.model.forward(tokens, inputs.metadata(size, size, 1, 1), self.caches)
        sample_rows(self.model.logits(hidden), inputs.device["draws"][:size], self._drawn[:size])

    def _forward_mixed(
        self, num_tokens: int, num_seqs: int, sampled: int, max_query_len: int, max_context_len: int
    ) -> None:
        inputs = self._mixed
        tokens = resolve_tokens(inputs.device["ids"][:num_tokens], self._drawn)
        meta = inputs.metadata(num_tokens, num_seqs, max_query_len, max_context_len)
        hidden = self.model.forward(tokens, meta, self.caches)
        if sampled:
            logits = self.model.logits(hidden[inputs.device["sample_rows"][:sampled]])
            sample_rows(logits, inputs.device["draws"][:sampled], self._drawn[:sampled])
