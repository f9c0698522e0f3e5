"""Calibration text as token windows."""

from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from tessera.formats.tokenizer import Tokenizer
from tessera.quantization.errors import CalibrationError


def calibration_text(path: Path | None) -> str:
    """The file's text as it is, or the default text (`data/README.md` says what it is)."""
    try:
        if path is None:
            source = files("tessera.quantization").joinpath("data/calibration.txt")
            return source.read_bytes().decode("utf-8")
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(
            f"calibration text {path} cannot be read: {error}", param="calibration"
        ) from error


def calibration_windows(text: str, tokenizer: Tokenizer, samples: int, length: int, seed: int) -> Tensor:
    """`samples` windows of `length` tokens, int64 [samples, length], cut from the text without overlap.

    Where the text has more windows than asked for, `seed` picks which. Raises CalibrationError where it has
    fewer tokens than one window.
    """
    tokens = torch.tensor(tokenizer.encode(text), dtype=torch.int64)
    windows = tokens[: len(tokens) // length * length].reshape(-1, length)
    if len(windows) == 0:
        raise CalibrationError(
            f"the calibration text has {len(tokens)} tokens, fewer than one window of {length}: "
            "give a longer text or a smaller --seq-len",
            param="calibration",
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(windows), generator=generator)[:samples]
    return windows[chosen.sort().values]
