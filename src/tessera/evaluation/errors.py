"""Failures of an evaluation."""

from tessera.errors import InvalidRequestError, TesseraError


class WindowError(InvalidRequestError):
    """The window does not fit the models' context, or the text does not fill one. Says both lengths."""


class TokenizerMismatchError(InvalidRequestError):
    """The two models cut the text into different tokens, so their predictions cannot be compared."""


class NonFiniteLogitsError(TesseraError):
    """A model put out NaN or infinite logits. Says which model, window and position."""
