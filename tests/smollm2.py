"""Where the tests find SmolLM2-135M-Instruct, the one real model they use."""

import os
from pathlib import Path

import pytest

VARIABLE = "TESSERA_TEST_MODEL"


def smollm2_path() -> Path:
    """The GGUF file that `make test` downloads, or the one TESSERA_TEST_MODEL names. Skips without it."""
    named = os.environ.get(VARIABLE)
    found = [Path(named)] if named else sorted((Path(__file__).parents[1] / "build" / "model").glob("*.gguf"))
    if not found or not found[0].is_file():
        pytest.skip(f"no SmolLM2 in build/model and {VARIABLE} is not set")
    return found[0]
