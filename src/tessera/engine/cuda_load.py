"""A checkpoint's tensors onto the device: several threads, through page-locked buffers."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
from torch import Tensor

from tessera.formats.base import Checkpoint, FloatCheckpoint
from tessera.numerics.qtensor import QTensor
from tessera.spec import Chain, ModelConfig

log = logging.getLogger(__name__)

THREADS: Final = 8
CHUNK_BYTES: Final = 32 * 2**20


class _Lane(threading.local):
    """One thread's stream and its two buffers, of which one is filled while the other is on its way."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.buffers = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.sent = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self.turn = 0

    def copy(self, source: Tensor) -> Tensor:
        """A copy of the contiguous CPU tensor `source` on the device, complete when this returns."""
        target = torch.empty(source.shape, dtype=source.dtype, device="cuda")
        self.stream.wait_stream(torch.cuda.default_stream())
        raw, to = source.reshape(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
        for start in range(0, raw.numel(), CHUNK_BYTES):
            stop = min(start + CHUNK_BYTES, raw.numel())
            self.turn ^= 1
            self.sent[self.turn].synchronize()
            buffer = self.buffers[self.turn][: stop - start]
            buffer.copy_(raw[start:stop])
            with torch.cuda.stream(self.stream):
                to[start:stop].copy_(buffer, non_blocking=True)
                self.sent[self.turn].record()
        self.stream.synchronize()
        return target


class DeviceWeights:
    """A checkpoint whose arrays are on the device already: as stored, or in `dtype` where the model is not
    quantized. Each tensor is put together there, given away once and then forgotten, so that packed weights
    and what they were made of need not be held together.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, threads: int = THREADS) -> None:
        self._checkpoint = checkpoint
        self.config: ModelConfig = checkpoint.config
        self.kv_chain: Chain = checkpoint.kv_chain
        started = time.perf_counter()
        self._held = _load(checkpoint, dtype, threads)
        nbytes = sum(array.nbytes for arrays in self._held.values() for array in arrays.values())
        seconds = time.perf_counter() - started
        self.rate_gbs = nbytes / seconds / 1e9
        log.info("loaded %.2f GB in %.2f s: %.2f GB/s", nbytes / 1e9, seconds, self.rate_gbs)

    def names(self) -> list[str]:
        return self._checkpoint.names()

    def tensor(self, name: str) -> Tensor:
        stored = self.qtensor(name)
        return stored.codes if stored.chain.is_plain else stored.dequantize()

    def qtensor(self, name: str) -> QTensor:
        held = self._held.pop(name, None)
        return self._checkpoint.qtensor(name) if held is None else self._checkpoint.assemble(name, held)

    def activation(self, name: str) -> Chain:
        return self._checkpoint.activation(name)


def arrays_to_send(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What goes to the device of a tensor. float32 would take twice what the memory plan counts."""
    arrays = checkpoint.arrays(name)
    if not isinstance(checkpoint, FloatCheckpoint):
        return arrays
    return {part: array.to(dtype) for part, array in arrays.items()}


def _load(checkpoint: Checkpoint, dtype: torch.dtype, threads: int) -> dict[str, dict[str, Tensor]]:
    """{tensor: its arrays on the device}."""
    device = torch.cuda.current_device()
    lane = _Lane()

    def load(name: str) -> dict[str, Tensor]:
        torch.cuda.set_device(device)
        arrays = arrays_to_send(checkpoint, name, dtype)
        return {part: lane.copy(array.contiguous()) for part, array in arrays.items()}

    # Largest first, so that no thread is left alone with a big one at the end.
    order = sorted(checkpoint.names(), key=lambda name: -checkpoint.tile(name).bytes)
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(order, pool.map(load, order), strict=True))
