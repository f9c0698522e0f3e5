"""Fixtures of the server's tests."""

from collections.abc import Iterator

import pytest
from live_server import Live, live_server


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server with default settings, shared by a module's tests."""
    with live_server() as server:
        yield server
    assert not server.error
