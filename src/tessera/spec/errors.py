"""Failures of the format description."""

from tessera.errors import InvalidRequestError, TesseraError


class SpecError(TesseraError):
    """A format description contradicts itself (unknown op, wrong parameters, overflow of a step's type)."""


class AlgebraError(TesseraError):
    """A Qtile operation would have to split or merge groups that share parameters. Carries the reason."""


class RecipeError(InvalidRequestError):
    """The recipe text is not in the grammar, or asks for a combination that does not exist."""


class GroupSizeError(InvalidRequestError):
    """A group does not divide a layer's input size. Names layer, K, group and legal sizes."""
