"""Seconds of the phases of a start."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def timed(phase: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the seconds the block takes to `seconds` under `phase`, and logs them."""
    start = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - start
    log.info("%s: %.2f s", phase, seconds[phase])
