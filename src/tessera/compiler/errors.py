"""Failures of the compiler."""

from tessera.errors import InvalidRequestError, TesseraError


class CompilerError(TesseraError):
    """Root of what follows, for callers who handle them alike."""


class ShapeError(CompilerError):
    """Axes of an operation disagree. Names the operation, both axes and their sizes."""


class DTypeError(CompilerError):
    """Element types of an operation do not go together. Names the operation and both types."""


class ParameterError(CompilerError):
    """A parameter does not broadcast to its pattern. Names the step, the pattern and both shapes."""


class ProgramError(CompilerError):
    """The program is empty, or uses or returns what is not a tensor of it.

    Cyclic ones cannot be written: an operation takes tensors that exist already.
    """


class BindError(CompilerError):
    """Inputs are missing, unknown, of the wrong size, or on different devices. Names each."""


class NoInverseError(CompilerError):
    """Codes were asked for from a mapping function that has no inverse. Names the step."""


class MappingError(CompilerError):
    """A mapping function written by the user is not a chain of steps. Names the operation that is not."""


class UnknownSkeletonError(InvalidRequestError):
    """No skeleton of that name. Names the known ones."""


class UnequalError(CompilerError):
    """Two graphs that must compute the same do not. Carries where and by how much."""


class PriceError(InvalidRequestError):
    """The device's instruction rates are not known, so graphs cannot be told apart on it."""
