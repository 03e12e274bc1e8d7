"""The models that a server lists, and what answers where it lists none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import httpx

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    InvalidRequestError,
    UnsupportedRequestError,
)
from evalution_core.plugins import nearest_name
from evalution_core.redaction import redact_text
from evalution_enginekit import RequestLoop
from evalution_openai.client.connection import ServerConnection, is_silent, is_unreachable
from evalution_openai.client.responses import quote, read_count, read_text, to_list, to_mapping
from evalution_openai.options import OpenAIOptions

PROBE_RETRIES = 1
_HANDSHAKE_S = 2.0
_EARLY_S = 30.0
"""Seconds for the first try to list models, which most servers answer at once."""
_NAMES_SHOWN = 8
_LATEST = ":latest"
"""The tag that Ollama lists, and that a request may leave out."""


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The answer of `/v1/models`, and its facts about the wanted model; all of them optional."""

    names: tuple[str, ...] = ()
    owner: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    capabilities: frozenset[str] = field(default_factory=frozenset[str])


async def fetch_listing(connection: ServerConnection, name: str | None) -> ModelListing:
    """Fetch the list of models; empty where a server has none but completes.

    Raises:
        EngineUnavailableError: no server answers, or none with OpenAI's routes.
        ConfigurationError: it rejected the credentials, or speaks TLS where http was asked for.
    """
    try:
        url = f"{connection.address.api}/models"
        answer = await connection.get(url, max_retries=PROBE_RETRIES, early_s=_EARLY_S)
        if "data" not in answer:
            raise EngineRuntimeError(f"/models answered without 'data': {quote(str(answer))}")
    except ConfigurationError:
        raise
    except EvalutionError as error:
        await _check_completions(connection, name, error)
        return ModelListing()
    models = [to_mapping(entry) for entry in to_list(answer.get("data"))]
    if not models:
        return ModelListing()
    names = tuple(str(model["id"]) for model in models if "id" in model)
    wanted = (name, f"{name}{_LATEST}")
    chosen = next((model for model in models if model.get("id") in wanted), None)
    if chosen is None and name is not None:
        # Nothing is known about that model.
        return ModelListing(names, read_text(models[0].get("owned_by")))
    chosen = chosen or models[0]
    return ModelListing(
        names,
        read_text(chosen.get("owned_by")),
        read_count(chosen.get("max_model_len")) or None,
        read_text(chosen.get("dtype")),
        frozenset(str(name) for name in to_list(chosen.get("capabilities"))),
    )


async def _check_completions(
    connection: ServerConnection, name: str | None, error: EvalutionError
) -> None:
    """Raise what is there instead, unless a route that completes reads an empty request.

    Args:
        connection: the server.
        name: the wanted model.
        error: the failure of its list of models.
    """
    api = redact_text(connection.address.api)
    if is_unreachable(error):
        raise EngineUnavailableError(
            f"no server answers at {api}: {error}; start it, or set base_url"
        ) from error
    routes = () if is_silent(error) else ("/completions", "/chat/completions")
    for route in routes:
        try:
            url = f"{connection.address.api}{route}"
            if "choices" in await connection.post(url, {"model": name or ""}, max_retries=0):
                return
        except (InvalidRequestError, UnsupportedRequestError):
            return  # it read the request, and misses the prompt
        except EngineRuntimeError:
            continue
    if await _speaks_tls(httpx.URL(connection.address.api)):
        raise ConfigurationError(
            f"the server at {api} speaks TLS: set base_url to https{api.removeprefix('http')}"
        ) from error
    if not routes:
        raise EngineUnavailableError(
            f"nothing is answered at {api}: {error}; see the server's log, set base_url to another "
            "one, or timeout_s to the seconds that it needs"
        ) from error
    raise EngineUnavailableError(
        f"no server with OpenAI's routes answers at {api}: {error}; /completions and "
        "/chat/completions failed too; see the server's log, or set base_url to another one"
    ) from error


async def _speaks_tls(url: httpx.URL) -> bool:
    """Return whether a TLS handshake succeeds at the address of an http URL; nothing is sent."""
    if url.scheme != "http":
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            _, writer = await asyncio.open_connection(url.host, url.port or 80, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()  # `close` would wait for the server's goodbye
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def choose_model(listing: ModelListing, name: str | None, options: OpenAIOptions) -> str:
    """Return the wanted model's name, or the first listed one where none is named.

    Raises:
        ConfigurationError: the server doesn't list it, or lists none and none is named.
    """
    address = redact_text(options.base_url)
    if name is None:
        if not listing.names:
            raise ConfigurationError(
                f"the server at {address} lists no model; set model.path or model_name to the name "
                "that it knows"
            )
        return listing.names[0]
    listed = {*listing.names, *(known.removesuffix(_LATEST) for known in listing.names)}
    if not listing.names or name in listed or options.allow_unlisted:
        return name
    shown = ", ".join(listing.names[:_NAMES_SHOWN])
    more = f" and {len(listing.names) - _NAMES_SHOWN} more" * (len(listing.names) > _NAMES_SHOWN)
    raise ConfigurationError(
        f"the server at {address} has no model {name!r}; it lists {shown}{more}; "
        f"{_suggest_name(name, listing.names)}"
    )


def _suggest_name(name: str, listed: Sequence[str]) -> str:
    last = PurePath(name).name
    if last in listed:
        # A spec takes a folder beside it for the model of that name.
        return f"a folder called {last!r} was taken for it: set the option model_name to {last!r}"
    near = nearest_name(name, listed) or listed[0]
    return (
        f"set model.path or model_name to {near!r}, or leave both out for the first; "
        "allow_unlisted: true is for a server that knows names which it doesn't list"
    )


def fetch_default_model(options: OpenAIOptions) -> str | None:
    """Fetch the first model that the server lists; None where it lists none.

    Raises:
        EngineUnavailableError, ConfigurationError: as `fetch_listing`.
    """
    loop = RequestLoop("the OpenAICompatible engine")
    connection = ServerConnection(options)
    try:
        names = loop.call(lambda: fetch_listing(connection, options.model_name)).names
    finally:
        loop.close(connection.close)
    return names[0] if names else None
