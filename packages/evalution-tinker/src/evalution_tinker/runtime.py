"""Imports tinker, finds the server and its key, and makes clients within a time limit."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException, InvalidURL
from importlib.metadata import version
from queue import Empty, SimpleQueue
from typing import Any, cast

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.options import read_key
from evalution_core.redaction import redact_text
from evalution_enginekit import import_runtime, runtime_errors
from evalution_tinker.options import TinkerOptions

TINKER = ">=0.24.1"
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The client's own default."""
_REFUSED, _MOVED = (401, 403), (301, 302, 303, 307, 308)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would send the key to the address that an answer names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answered; `models` maps each listed model to its window, None if unknown."""

    url: str
    key: str
    models: dict[str, int | None] = field(default_factory=dict[str, int | None])
    timeout_s: float = 90.0


def import_tinker() -> Any:
    """Import tinker.

    Raises:
        EngineUnavailableError: it isn't installed, or in another version than the engine takes.
    """
    return import_runtime("tinker", TINKER, install="pip install evalution-tinker")


def read_client_version() -> str:
    """Return the version of the installed client."""
    return version("tinker")


def find_server(options: TinkerOptions) -> Server:
    """Return the server of `options` and the models that it lists.

    Where nothing listens, the client retries endlessly and reports nothing (tinker 0.24 to 0.38),
    so the first request is made here. Any HTTP answer counts as a sign of life.

    Raises:
        ConfigurationError: the key isn't set or isn't accepted, or the address is no URL.
        EngineUnavailableError: nothing answers within `timeout_s`.
    """
    key = read_key(options.api_key_env)
    if not key:
        raise ConfigurationError(
            f"engine Tinker reads its key from the environment variable {options.api_key_env}, "
            "which isn't set; set it (for a server that asks for none, to any text that begins "
            "with tml-), or name another with api_key_env"
        )
    url = _read_address(options)
    shown = redact_text(url)
    try:
        answer = get_json(f"{url}/api/v1/get_server_capabilities", key, options.timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _MOVED:
            target = redact_text(error.headers.get("location", "another address"))
            raise ConfigurationError(
                f"the server at {shown} redirects to {target}, which is not followed, so that no "
                "key goes to another address; set base_url to the right one"
            ) from None
        if error.code in _REFUSED:
            raise ConfigurationError(
                f"the server at {shown} refuses the key in {options.api_key_env} (HTTP "
                f"{error.code})"
            ) from None
        return Server(url, key, timeout_s=options.timeout_s)
    except InvalidURL as error:
        raise ConfigurationError(
            f"base_url of engine Tinker is not a URL: {shown!r} ({redact_text(str(error))})"
        ) from None
    except (OSError, ValueError, HTTPException) as error:
        raise EngineUnavailableError(
            f"no Tinker-compatible server answers at {shown} within {options.timeout_s:g} s "
            f"({redact_text(str(error), (key,))}); start it, or name another with base_url"
        ) from None
    return Server(url, key, _parse_models(answer), options.timeout_s)


def _read_address(options: TinkerOptions) -> str:
    url = (options.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")
    shown = redact_text(url)
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"base_url of engine Tinker must begin with http:// or https://, got {shown!r}"
        )
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigurationError(
            "base_url of engine Tinker holds a name and password, which aren't sent to the server: "
            f"leave them out of {shown!r}"
        )
    return url


def read_server_name(url: str) -> str:
    """Return the title and version in the server's OpenAPI document, if it has one."""
    try:
        about: Any = get_json(f"{url}/openapi.json", None, 5.0).get("info")
        return f"{about['title']} {about['version']}"
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return "which reports no version"


def get_json(url: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the JSON object at `url`; raises `OSError`, `ValueError` or `HTTPException`."""
    headers = {} if key is None else {"X-API-Key": key}
    with _OPENER.open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as r:
        found: Any = json.loads(r.read())
    if not isinstance(found, dict):
        raise ValueError("the answer is not a JSON object")
    return cast("dict[str, Any]", found)


def _parse_models(answer: dict[str, Any]) -> dict[str, int | None]:
    listed: Any = answer.get("supported_models")
    found: dict[str, int | None] = {}
    for entry in cast("list[Any]", listed) if isinstance(listed, list) else []:
        known = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        name, window = known.get("model_name"), known.get("max_context_length")
        if isinstance(name, str):
            found[name] = window if isinstance(window, int) else None
    return found


WEIGHTS = "tinker://"
"""Prefix of the path of saved weights."""

CLOSING_S = 10.0
"""Seconds for ending the session at the server."""

_log = logging.getLogger(__name__)


def close_service(tinker: Any, service: Any) -> None:
    """End a client's session at the server and close its connections, within ten seconds.

    A server that can't be reached any more drops the session by itself.
    """

    def close() -> None:
        if hasattr(service, "close"):
            service.close("success").result(timeout=CLOSING_S)
        else:  # tinker 0.24 closes what is inside
            service.holder.close()

    # On a thread: while the client still tries to connect, it holds the lock that its `close`
    # takes (tinker 0.38), and it never gives up.
    results = _start_call(close)
    try:
        _, error = results.get(timeout=CLOSING_S)
    except Empty:
        error = TimeoutError(f"nothing within {CLOSING_S:g} s")
    if isinstance(error, tinker.TinkerError | TimeoutError):
        _log.info("the session at the server was not ended: %s", redact_text(str(error)))
    elif error is not None:
        raise error


def make_sampling_client(service: Any, name: str) -> Any:
    """Make a sampling client for a base model, or for saved weights."""
    chosen = {"model_path" if name.startswith(WEIGHTS) else "base_model": name}
    return resolve_client(service.create_sampling_client(**chosen))


def resolve_client(made: Any) -> Any:
    """Return the client itself where tinker 0.38 gives a future of it."""
    return made.result() if hasattr(made, "result") else made


def connect_within(make: Callable[[], Any], timeout_s: float, url: str | None) -> Any:
    """Return `make()`, called with a limit of `timeout_s`: the client's own calls have none.

    Raises:
        EngineUnavailableError: it took longer; the thread that waits is left behind.
        EngineRuntimeError: the client failed.
    """
    results = _start_call(make)
    try:
        made, error = results.get(timeout=timeout_s)
    except Empty:
        where = "" if url is None else f" at {redact_text(url)}"
        raise EngineUnavailableError(
            f"the Tinker server{where} made no sampling client within {timeout_s:g} s"
        ) from None
    with runtime_errors("making a sampling client"):
        if error is not None:
            raise error
    return made


def _start_call(call: Callable[[], Any]) -> SimpleQueue[tuple[Any, BaseException | None]]:
    """Start `call` on a thread of its own and return the queue for its result or error."""
    results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised on the calling thread
            results.put((None, error))

    threading.Thread(target=run, name="evalution-tinker call", daemon=True).start()
    return results
