"""Error answers of a server as the contract's errors."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any, cast

from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    UnsupportedRequestError,
    scrub,
)
from evalution_openai.client.dialects import find_unasked_fields

_LONGEST_QUOTE = 200
_WRONG_REQUEST = frozenset({400, 413, 422})
_TOO_LONG = ("maximum context length", "context_length_exceeded", "exceeds the available context")


def make_error(
    status: int, body: bytes, path: str, sent: Mapping[str, Any] | None = None
) -> EvalutionError:
    """Make the error for an answer that isn't a success to the request `sent`.

    A request that the server finds wrong is the request's failure (`InvalidRequestError`,
    `ContextLengthError`, `UnsupportedRequestError`); a key that it rejects is a
    `ConfigurationError`; anything else is the server's failure.
    """
    message, code = read_error(body)
    said = f"{path} answered {status}: {message}"
    if status in (401, 403):
        return ConfigurationError(
            f"the server doesn't accept the credentials: {said}; set api_key, or api_key_env to "
            "the name of the environment variable that holds it"
        )
    if code == "unsupported" or status == 501:
        return UnsupportedRequestError(said)
    if status in _WRONG_REQUEST:
        if unasked := find_unasked_fields(sent or {}, message):
            without = ", ".join(f"{name!r}: None" for name in unasked)
            said += (
                f"; sent in place of the server's own setting: extra_body={{{without}}} "
                "leaves that to the server"
            )
        lower = message.lower()
        too_long = code == "context_length_exceeded" or any(mark in lower for mark in _TOO_LONG)
        return ContextLengthError(said) if too_long else InvalidRequestError(said)
    return EngineRuntimeError(said)


def find_tls_error(error: Exception, url: str) -> ConfigurationError | None:
    """Find the TLS error that ended a connection, which no retry can fix; None for any other."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        advice = "set SSL_CERT_FILE to the authority's certificate, or base_url to the right name"
        why = f"the certificate isn't accepted ({cause.verify_message})"
    else:
        advice = "where the server speaks plain http, say so in base_url"
        why = quote(str(cause))
    return ConfigurationError(f"no TLS connection to {scrub(url)}: {why}; {advice}")


def read_error(body: bytes) -> tuple[str, str | None]:
    """Read message and code of an error body in any of its forms; redacted and cut short."""
    text = body.decode("utf-8", "replace")
    try:
        content: Any = json.loads(text)
    except ValueError:
        return quote(text), None
    code: Any = None
    for key in ("error", "detail", "message"):
        if isinstance(content, Mapping) and key in content:
            entries = cast("Mapping[str, Any]", content)
            code = entries.get("code", code)
            content = entries[key]
    if isinstance(content, str):
        return quote(content), code if isinstance(code, str) else None
    return quote(json.dumps(content)), code if isinstance(code, str) else None


def quote(text: str) -> str:
    """Quote a server's text in a message: redacted, on one line, at most 200 characters."""
    line = " ".join(scrub(text).split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[:_LONGEST_QUOTE]}…"
