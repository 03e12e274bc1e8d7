"""Access to the server: the key of a request, and the names of host and origin that it may have."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from evalution_openai.server.errors import ApiError
from evalution_openai.server.settings import ServerSettings, is_loopback

if TYPE_CHECKING:
    from starlette.types import Scope

_OPEN_PATHS = {"/health"}
_HOST = re.compile(r"(?:\[([^]]+)\]|([^:@]+))(?::\d+)?")
"""An IPv6 address or a name, and a port."""


def check_access(scope: Scope, settings: ServerSettings) -> None:
    """Check the headers that say where a request comes from and where it believes to go.

    Raises:
        ApiError: 400 without exactly one host, 403 for a web page of another origin or a foreign
            host name, 401 without the key. A key proves that no page of others is asking.
    """
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) > 1 or (not hosts and scope.get("http_version") == "1.1"):
        raise ApiError(400, f"a request needs one Host header; this one has {len(hosts)}")
    if settings.api_key is not None:
        if scope["path"] not in _OPEN_PATHS:
            _check_key(headers, settings.api_key)
        return
    host = hosts[0] if hosts else "localhost"
    _check_origin(headers.get("origin"), host)
    server = scope.get("server")
    if server and is_loopback(server[0]) and not settings.any_host:
        _check_host(host)


def _check_key(headers: Headers, key: str) -> None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise ApiError(
            401,
            "this server wants its API key: Authorization: Bearer KEY",
            kind="authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _check_origin(origin: str | None, host: str) -> None:
    """Refuse what a web page of another server sends; a browser states its origin."""
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise ApiError(
            403,
            f"without a key, this server doesn't answer web pages of another origin ({origin}): "
            "start it with --api-key-env NAME",
            code="origin_not_allowed",
        )


def _check_host(header: str) -> None:
    """Refuse foreign host names, by which a web page could read the answers (DNS rebinding)."""
    found = _HOST.fullmatch(header)
    if found is None or not is_loopback(found[1] or found[2]):
        raise ApiError(
            403,
            "without a key, this server answers to localhost alone: ask for that name, or "
            "start it with --api-key-env NAME",
            code="host_not_allowed",
        )
