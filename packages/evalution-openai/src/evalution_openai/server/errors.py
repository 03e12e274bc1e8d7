"""Errors as a client reads them: OpenAI's shape, a status, and never a traceback."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import TypedDict

from evalution_core import (
    ContextLengthError,
    EvalutionError,
    InvalidRequestError,
    SessionClosedError,
    UnsupportedRequestError,
    scrub,
)

_LONGEST = 2000
"""Characters of a message: it may quote what the client sent."""


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """The body of every answer that isn't a success."""

    error: ErrorDetail


class Problem(Exception):
    """What ends a request, with the status that it is answered with."""

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


def unsupported(message: str, *, param: str | None = None) -> Problem:
    """A right request that this server or its engine can't serve."""
    return Problem(400, message, code="unsupported", param=param)


def queue_full(limit: int) -> Problem:
    return Problem(
        429,
        f"{limit} requests are running or waiting, and no more are taken; try again",
        kind="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


def unavailable(message: str) -> Problem:
    return Problem(
        503, message, kind="server_error", code="unavailable", headers={"Retry-After": "5"}
    )


def unexpected() -> Problem:
    """For an error that nobody foresaw: its text may tell what is no client's business."""
    return Problem(
        500, "the server failed; its log says how", kind="server_error", code="engine_failed"
    )


def problem_of(error: EvalutionError) -> Problem:
    """What a client is told of an error of the session."""
    message = scrub(str(error))
    match error:
        case ContextLengthError():
            return Problem(400, message, code="context_length_exceeded")
        case UnsupportedRequestError():
            return unsupported(message)
        case InvalidRequestError():
            return Problem(400, message)
        case SessionClosedError():
            return unavailable(message)
        case _:
            return Problem(500, message, kind="server_error", code="engine_failed")


class ClientGoneError(Exception):
    """The client went away, or stopped reading, before its answer was complete."""
