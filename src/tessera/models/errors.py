"""Failures of building a model."""

from tessera.errors import InvalidRequestError


class NoModelError(InvalidRequestError):
    """No model family implements the checkpoint's architecture. Names it and the known ones."""


class UnknownDeviceError(InvalidRequestError):
    """No kernels exist for a kind of device. Names it and the known ones."""
