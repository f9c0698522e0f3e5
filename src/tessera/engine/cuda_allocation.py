"""Allocations on the device that a plan said would fit, and did not."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tessera.engine.errors import DeviceMemoryTakenError, FragmentedMemoryError


@contextmanager
def allocating(what: str, nbytes: int) -> Iterator[None]:
    """Within it `what`, of about `nbytes`, is allocated on the current device.

    Where the device refuses, raises FragmentedMemoryError if what was missing is free in pieces, else
    DeviceMemoryTakenError: the plan had counted on memory that something else holds by now.
    """
    before = torch.cuda.memory_allocated()
    try:
        yield
    except torch.OutOfMemoryError as error:
        # What was allocated within is still held by the frames of the traceback, so it counts as done.
        allocated = torch.cuda.memory_allocated()
        done = allocated - before
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - allocated
        shown = (
            f"allocating {what} failed after {_gib(done)} of {_gib(nbytes)}, with {_gib(free)} free on the "
            "device"
        )
        if free >= nbytes - done:
            raise FragmentedMemoryError(
                f"{shown}, in pieces that are too small: set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or lower kv_tokens or memory_fraction"
            ) from error
        raise DeviceMemoryTakenError(
            f"{shown}, {_gib(nbytes - done - free)} too little: something has taken memory since it was "
            "planned; end what else runs on the device (nvidia-smi shows it), or lower kv_tokens or "
            "memory_fraction"
        ) from error


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
