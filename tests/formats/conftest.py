"""The real model, where it has been fetched."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct (see the Makefile). Skips only where the file is absent."""
    if named := os.environ.get("TESSERA_TEST_MODEL"):
        return Path(named)
    found = sorted((ROOT / "build" / "model").glob("*.gguf"))
    if not found:
        pytest.skip("no SmolLM2 GGUF in build/model and TESSERA_TEST_MODEL is not set")
    return found[0]
