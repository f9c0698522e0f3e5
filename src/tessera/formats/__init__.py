"""Checkpoints and tokenizers: Tessera's own format, Hugging Face directories, GGUF files, hub ids."""

from tessera.formats.base import Checkpoint, check_finite
from tessera.formats.errors import (
    AccessError,
    ChatTemplateError,
    CheckpointNotFoundError,
    ConfigError,
    CorruptError,
    DiskFullError,
    ForeignFormatError,
    FormatError,
    HubError,
    MissingTensorError,
    NonFiniteError,
    OutputExistsError,
    ShapeMismatchError,
    TextError,
    TokenizerError,
    TruncatedError,
    UnexpectedTensorError,
    UnknownArchitectureError,
)
from tessera.formats.sniff import open_checkpoint
from tessera.formats.tokenizer import DecodeStream, Tokenizer
from tessera.formats.writer import CheckpointWriter, check_output

__all__ = [
    "AccessError", "ChatTemplateError", "Checkpoint", "CheckpointNotFoundError", "CheckpointWriter",
    "ConfigError", "CorruptError", "DecodeStream", "DiskFullError", "ForeignFormatError", "FormatError",
    "HubError", "MissingTensorError", "NonFiniteError", "OutputExistsError", "ShapeMismatchError",
    "TextError", "Tokenizer", "TokenizerError", "TruncatedError", "UnexpectedTensorError",
    "UnknownArchitectureError", "check_finite", "check_output", "open_checkpoint",
]  # fmt: skip
