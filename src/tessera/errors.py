"""Root of the error hierarchy. Each package defines one class per failure in its own `errors.py`."""


class TesseraError(Exception):
    """Any failure that is not a bug. The message carries the numbers and the next thing to do."""


class InvalidRequestError(TesseraError):
    """The caller asked for something that can never work; the server answers 400 with this message.

    `param` names the offending parameter (OpenAI error body), or is None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
