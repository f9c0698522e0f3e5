"""Failures of kernel selection and use."""

from tessera.errors import TesseraError


class NoKernelError(TesseraError):
    """No registered kernel implements a problem. The message lists every candidate and its reason."""


class KernelArgumentError(TesseraError):
    """A tensor of the wrong shape, type, device or layout. Names kernel and argument."""
