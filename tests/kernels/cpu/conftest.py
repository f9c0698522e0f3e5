"""Tests of compiled kernels need a compiler; those of the torch fallback run everywhere."""

import pytest

from tessera.kernels.cpu import available
from tessera.kernels.cpu.library import Unavailable, load


def pytest_collection_modifyitems(items):
    compiled = [
        item
        for item in items
        if item.path.name.startswith("test_cpu_") and "without_a_compiler" not in item.name
    ]
    if not compiled:
        return
    library = load(available()[0])
    if isinstance(library, Unavailable):
        for item in compiled:
            item.add_marker(pytest.mark.skip(reason=f"no compiled kernels: {library.reason}"))
