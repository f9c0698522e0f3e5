"""Failures of quantizing a model."""

from tessera.errors import InvalidRequestError, TesseraError


class CalibrationError(InvalidRequestError):
    """The calibration text cannot be read, or has fewer tokens than asked for."""


class AlreadyQuantizedError(InvalidRequestError):
    """The input is itself a quantized Tessera checkpoint: rounding twice only loses."""


class OutputKeptError(InvalidRequestError):
    """The output path holds a checkpoint, and replacing it was not asked for."""


class SkippedError(TesseraError):
    """A layer that the recipe quantizes was left as it was. Never happens silently."""


class WeightError(TesseraError):
    """A weight cannot be stored in the recipe's format. Names the tensor and what its values span."""


class HessianError(TesseraError):
    """A layer's inputs on the calibration text are NaN or infinite. Names the layer."""


class CheckFailedError(TesseraError):
    """A pass that should keep the block's function changed its output. Names block, pass and difference."""
