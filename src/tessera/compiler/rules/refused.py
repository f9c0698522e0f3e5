"""Why a transformation does not exist."""

from tessera.compiler.errors import CompilerError


class Refused(CompilerError):
    """The rule does not hold for these Qtiles: there the operation stays eager. Carries the reason."""
