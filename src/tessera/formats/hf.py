"""Hugging Face directories as checkpoints: config.json, one or several safetensors files, a tokenizer."""

from functools import cached_property
from pathlib import Path
from typing import Final

from torch import Tensor

from tessera.formats.base import FloatCheckpoint, check_tensors
from tessera.formats.errors import ForeignFormatError
from tessera.formats.hf_config import parse_config, read_json
from tessera.formats.shards import Shards
from tessera.formats.tokenizer import FILES, Tokenizer
from tessera.numerics.qtensor import FLOATS
from tessera.spec import Chain, ModelConfig, Qtile

_DERIVED: Final = ".rotary_emb.inv_freq"
"""A buffer that old versions of transformers saved and that follows from the configuration."""


class HFCheckpoint(FloatCheckpoint):
    """Raises FormatError (see `errors.py`) where the directory cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path)
        self._shards = Shards(path)
        shapes = {name: entry.shape for name, entry in self._shards.entries.items() if self._counts(name)}
        check_tensors(str(path), shapes, self.config)
        for name in shapes:
            dtype = self._shards.entries[name].dtype
            if dtype not in FLOATS:
                raise ForeignFormatError(f"{path}: {name} is {dtype}: float32, float16 and bfloat16 are read")

    def _counts(self, name: str) -> bool:
        """A tied model's output head is the embedding, whatever copy of it the file holds."""
        return not name.endswith(_DERIVED) and not (name == "lm_head.weight" and self.config.tied_embeddings)

    def tile(self, name: str) -> Qtile:
        entry = self._shards.entries[name]
        return Qtile(entry.shape, Chain(FLOATS[entry.dtype]))

    def tensor(self, name: str) -> Tensor:
        return self._shards.read(name)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_directory(self.path)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def files(self) -> dict[str, bytes]:
        return side_files(self.path)


def read_config(path: Path) -> ModelConfig:
    """Raises ForeignFormatError for a directory that another quantizer wrote, ConfigError, CorruptError."""
    raw = read_json(path / "config.json")
    if quantized := raw.get("quantization_config"):
        method = quantized.get("quant_method", "an unnamed method")
        raise ForeignFormatError(
            f"{path} is quantized with {method!r}, which is not read; take the unquantized model it came from"
        )
    generation = path / "generation_config.json"
    settings = read_json(generation) if generation.is_file() else {}
    return parse_config(raw, settings, str(path / "config.json"))


def side_files(path: Path) -> dict[str, bytes]:
    """Tokenizer, template and generation settings of a directory, byte for byte."""
    return {name: (path / name).read_bytes() for name in FILES if (path / name).is_file()}
