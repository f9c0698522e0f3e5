"""Failures of naming and measuring devices."""

from tessera.errors import InvalidRequestError, TesseraError


class UnknownDeviceError(InvalidRequestError):
    """No device of that name. Offers the nearest names and `custom:`."""


class CustomDeviceError(InvalidRequestError):
    """`custom:…` lacks a key, repeats one, or gives one a value that is not a positive number."""


class MissingPeakError(InvalidRequestError):
    """The device has no arithmetic of that type, or it was never measured."""


class HardwareFileError(TesseraError):
    """The file of measured devices cannot be read or written, or is not in the format. Names path and key."""
