"""Threads where they help."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

SMALL: Final = 1 << 22
"""Elements up to which a loop of operations is faster on one thread: each of them would otherwise start and
end with all threads waiting for one another (8 times slower on two shared cores, 1536 x 576, GPTQ)."""


@contextmanager
def serial(elements: int) -> Iterator[None]:
    """Torch on one thread inside, if the tensors worked on have at most SMALL `elements`."""
    threads = torch.get_num_threads()
    if elements > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
