"""Failures that a client sees: each is an HTTP status and an OpenAI error body.

What the caller got wrong and will get wrong again is an `InvalidRequestError` (400); the classes here are
the rest.
"""

from typing import ClassVar

from tessera.errors import TesseraError


class ApiError(TesseraError):
    """Base of failures with an HTTP status other than 400.

    `status`, `type` and `code` fill the response; `retry_after_s` becomes a Retry-After header.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retry_after_s: int | None = None


class AuthenticationError(ApiError):
    """The API key is missing or wrong."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class ModelNotFoundError(ApiError):
    """The request names a model that this server does not serve."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class OverloadedError(ApiError):
    """The queue is full. The client may try again after `retry_after_s` seconds."""

    status = 503
    type = "overloaded_error"
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReadyError(ApiError):
    """The self-check has not passed, or the server is draining."""

    status = 503
    type = "server_error"
    code = "not_ready"


class EngineFailedError(ApiError):
    """The engine died or failed this request; the message carries its cause."""

    status = 500
    type = "server_error"
    code = "engine_failed"
