"""Every failure as an OpenAI error body: `{"error": {"message", "type", "param", "code"}}`."""

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from tessera.errors import InvalidRequestError, TesseraError
from tessera.server.errors import ApiError
from tessera.server.protocol import ErrorBody, ErrorDetail

log = logging.getLogger(__name__)

INVALID_REQUEST: Final = "invalid_request_error"

_UNIONS: Final = {
    "prompt": "a string, a list of strings, a list of token ids or a list of lists of token ids",
    "stop": "a string or a list of strings",
    "content": "a string or a list of text parts",
}
"""What a field of several types accepts; pydantic reports one error per type that did not match."""


def error_body(error: TesseraError) -> ErrorBody:
    """OpenAI error body of a failure."""
    if isinstance(error, InvalidRequestError):
        detail = ErrorDetail(message=str(error), type=INVALID_REQUEST, param=error.param)
    elif isinstance(error, ApiError):
        detail = ErrorDetail(message=str(error), type=error.type, code=error.code)
    else:
        detail = ErrorDetail(message=str(error), type=ApiError.type)
    return ErrorBody(error=detail)


def reply(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response:
    """ASCII JSON, because messages quote what clients send, broken surrogates included."""
    return Response(json.dumps(body.model_dump()), status, headers, media_type="application/json")


def error_reply(error: TesseraError) -> Response:
    """HTTP response of a failure: 400 for what the caller got wrong, else the class's status or 500."""
    if isinstance(error, InvalidRequestError):
        return reply(400, error_body(error))
    if not isinstance(error, ApiError):
        return reply(500, error_body(error))
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return reply(error.status, error_body(error), headers)


def install(app: FastAPI) -> None:
    """Register the handlers that turn every exception into such a reply."""

    @app.exception_handler(TesseraError)
    async def _tessera(_: Request, error: TesseraError) -> Response:
        return error_reply(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        return error_reply(invalid_body(error.errors()))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        body = ErrorBody(error=ErrorDetail(message=message, type=INVALID_REQUEST))
        return reply(error.status_code, body, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def _bug(_: Request, error: Exception) -> Response:
        log.error("request failed", exc_info=error)
        message = f"internal error ({type(error).__name__}): the server's log has the details"
        return reply(500, ErrorBody(error=ErrorDetail(message=message, type=ApiError.type)))


def invalid_body(errors: Sequence[Any]) -> InvalidRequestError:
    """The first of pydantic's errors as one sentence that names the parameter."""
    first = next((e for e in errors if e["type"] == "value_error"), errors[0])
    path = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {first['ctx']['error']}")
    if not path:
        return InvalidRequestError(
            f"the body must be a JSON object, sent with Content-Type: application/json: {first['msg']}"
        )
    for depth, part in enumerate(path):
        if part in _UNIONS:
            path = path[: depth + 1]
    name = _dotted(path)
    if first["type"] == "value_error":
        return InvalidRequestError(f"{name}: {first['ctx']['error']}", param=name)
    if path[-1] in _UNIONS and first["type"] != "missing":
        return InvalidRequestError(f"{name} must be {_UNIONS[path[-1]]}", param=name)
    if first["type"] == "extra_forbidden":
        return InvalidRequestError(f"unknown parameter {name}", param=name)
    if first["type"] == "missing":
        return InvalidRequestError(f"{name} is required", param=name)
    return InvalidRequestError(f"{name}: {first['msg']}", param=name)


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)
