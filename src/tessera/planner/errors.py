"""Failures of planning."""

from tessera.errors import InvalidRequestError, TesseraError


class PlanError(InvalidRequestError):
    """A number that cannot be planned with: zero, negative, or above what the model allows."""


class UnknownModelError(InvalidRequestError):
    """No model of that name or path. Offers the nearest names."""


class ModelFileError(TesseraError):
    """A config.json or GGUF header lacks keys (named), or describes something that is not priced here."""


class CapacityError(InvalidRequestError):
    """Weights and reserve leave no room for one sequence. Carries the arithmetic and what would help."""


class UnknownWorkloadError(InvalidRequestError):
    """No workload of that name. Offers the known ones."""


class TraceError(InvalidRequestError):
    """A file of recorded requests has bad rows, or too few. Names lines."""


class UnreachableError(InvalidRequestError):
    """No number of GPUs keeps the promise. Carries what one request alone takes."""
