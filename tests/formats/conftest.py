"""The real model, where it has been fetched."""

from pathlib import Path

import pytest

from smollm2 import smollm2_path


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct. Skips only where the file is absent."""
    return smollm2_path()
