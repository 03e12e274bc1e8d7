"""Error answers in OpenAI's form, with a status and without a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from typing_extensions import TypedDict

from evalution_core import (
    ContextLengthError,
    EvalutionError,
    InvalidRequestError,
    SessionClosedError,
    UnsupportedRequestError,
)
from evalution_core.redaction import redact_text

_log = logging.getLogger("evalution_openai.server")
_LONGEST = 2000
"""Characters of a message, which may quote the request."""


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """The body of every error answer."""

    error: ErrorDetail


class ApiError(Exception):
    """An error answer and its status; raised, it ends the request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.answer: ErrorAnswer = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }


def make_unsupported(message: str, *, param: str | None = None) -> ApiError:
    """Make the 400 for a valid request that this server or its engine can't serve."""
    return ApiError(400, message, code="unsupported", param=param)


def make_busy(message: str, code: str, headers: Mapping[str, str] | None = None) -> ApiError:
    """Make the 429 for a request that there is no room for at the moment."""
    return ApiError(
        429,
        f"{message}; try again",
        kind="rate_limit_error",
        code=code,
        headers={"Retry-After": "1", **(headers or {})},
    )


def make_unavailable(message: str) -> ApiError:
    """Make the 503 of a server that is starting or stopping."""
    return ApiError(
        503, message, kind="server_error", code="unavailable", headers={"Retry-After": "5"}
    )


def to_api_error(error: Exception, secrets: Iterable[str] = ()) -> ApiError:
    """Convert a failure to an answer without `secrets`; the log gets those of the server.

    The message of an unexpected exception is for the log alone.
    """
    if isinstance(error, ApiError):
        return error
    message = redact_text(str(error), secrets)
    if isinstance(error, InvalidRequestError):
        message = message.replace("max_new_tokens", "max_tokens")  # as clients call it
    match error:
        case ContextLengthError():
            return ApiError(400, message, code="context_length_exceeded")
        case UnsupportedRequestError():
            return make_unsupported(message)
        case InvalidRequestError():
            return ApiError(400, message)
        case SessionClosedError():
            return make_unavailable(message)
        case EvalutionError():
            _log.error("%s: %s", type(error).__name__, message)
        case _:
            _log.error("unexpected failure", exc_info=error)
            message = "the server failed; its log says how"
    return ApiError(500, message, kind="server_error", code="engine_failed")
