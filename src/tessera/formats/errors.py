"""Failures of reading and writing checkpoints, tokenizers and chat templates."""

from tessera.errors import InvalidRequestError, TesseraError


class FormatError(TesseraError):
    """Base of everything that is wrong with a checkpoint."""


class CheckpointNotFoundError(FormatError):
    """Nothing under that path or hub id. Names the nearest paths that exist."""


class HubError(FormatError):
    """The hub refused, or could not be reached."""


class ForeignFormatError(FormatError):
    """The file or directory is not in a format that is read here (pickle, big endian, other quantizers)."""


class TruncatedError(FormatError):
    """A file ends before its own header says it should. Names both sizes."""


class CorruptError(FormatError):
    """A header contradicts itself, or a checksum differs."""


class ConfigError(FormatError):
    """`config.json` or GGUF metadata lack a key or ask for something that is not supported."""


class UnknownArchitectureError(ConfigError):
    """No model of that architecture. Names the known ones."""


class MissingTensorError(FormatError):
    """The checkpoint lacks tensors that its architecture has."""


class UnexpectedTensorError(FormatError):
    """The checkpoint has tensors that its architecture does not: they would be ignored silently."""


class ShapeMismatchError(FormatError):
    """A tensor has another shape than the configuration asks for."""


class NonFiniteError(FormatError):
    """A weight is NaN or infinite. Names the tensor, how many values and where the first one is."""


class OutputExistsError(FormatError):
    """The output path holds something that is not a Tessera checkpoint and is therefore left alone."""


class DiskFullError(FormatError):
    """No space left while writing. The previous output, if any, is untouched."""


class AccessError(FormatError):
    """The system denies reading or writing there."""


class TokenizerError(FormatError):
    """No tokenizer, or one of a kind that is not supported."""


class TextError(InvalidRequestError):
    """The text is not valid Unicode (a lone surrogate)."""


class ChatTemplateError(InvalidRequestError):
    """The model has no chat template, or the template refuses these messages."""
