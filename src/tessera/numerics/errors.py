"""Failures of the executable specification."""

from tessera.errors import TesseraError


class QTensorError(TesseraError):
    """The data does not fit its Qtile: shape, type, parameters, code off the grid, overflow."""


class ScaleRangeError(TesseraError):
    """A scale or minimum cannot be stored: the data has NaN or Inf, or exceeds the storage type's range."""


class NoEncoderError(TesseraError):
    """No rule finds parameters for this chain of steps, or the lookup table it needs was not given."""


class PackError(TesseraError):
    """Codes do not fit the bit width, or packed bytes do not match the length asked for."""


class RopeKindError(TesseraError):
    """The rotary embedding is of a kind nobody here computes. Names the known ones."""
