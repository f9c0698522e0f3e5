"""Failures of quantizing a model."""

from tessera.errors import InvalidRequestError, TesseraError


class CalibrationError(InvalidRequestError):
    """The calibration text cannot be read, or has fewer tokens than asked for."""


class AlreadyQuantizedError(InvalidRequestError):
    """The input is itself a quantized Tessera checkpoint: rounding twice only loses."""


class HessianError(TesseraError):
    """A layer's inputs on the calibration text are NaN or infinite. Names the layer; something before it broke."""


class CheckFailedError(TesseraError):
    """A pass that should keep the block's function changed its output. Names block, pass and difference."""
