"""Which server is asked: its address, the key, and a sign of life before any client is made."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException, InvalidURL
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from evalution_core import ConfigurationError, EngineUnavailableError, hide, scrub

if TYPE_CHECKING:
    from evalution_tinker.engine import Tinker

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""Where the client goes when it is told nothing."""
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answered. `models` has the window of each model it lists, None where untold."""

    url: str
    key: str
    models: dict[str, int | None] = field(default_factory=dict[str, int | None])
    timeout_s: float = 90.0


def client_version() -> str:
    """The version of the installed client."""
    return version("tinker")


def found_server(options: Tinker) -> Server:
    """The server of `options`, asked what it serves.

    With nothing there the client would try again for ever and say nothing (tinker 0.24 to 0.38),
    so the first request is made here. Any answer is a sign of life.

    Raises:
        ConfigurationError: the key isn't set or isn't accepted, or the address is no URL.
        EngineUnavailableError: nothing answers within `timeout_s`.
    """
    key = os.environ.get(options.api_key_env)
    if not key:
        raise ConfigurationError(
            f"engine Tinker reads its key from the environment variable {options.api_key_env}, "
            "which isn't set; set it (for a server that asks for none, to any text that begins "
            "with tml-), or name another with api_key_env"
        )
    hide(key, is_secret=True)
    url = (options.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"base_url of engine Tinker must begin with http:// or https://, got {scrub(url)!r}"
        )
    try:
        answer = get_json(f"{url}/api/v1/get_server_capabilities", key, options.timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _REFUSED:
            raise ConfigurationError(
                f"the server at {scrub(url)} refuses the key in {options.api_key_env} (HTTP "
                f"{error.code})"
            ) from None
        return Server(url, key, timeout_s=options.timeout_s)
    except InvalidURL as error:
        raise ConfigurationError(
            f"base_url of engine Tinker is no URL: {scrub(url)!r} ({scrub(str(error))})"
        ) from None
    except (OSError, ValueError, HTTPException) as error:
        raise EngineUnavailableError(
            f"no Tinker-compatible server answers at {scrub(url)} within {options.timeout_s:g} s "
            f"({scrub(str(error))}); start it, or name another with base_url"
        ) from None
    return Server(url, key, _models(answer), options.timeout_s)


def server_name(url: str, timeout_s: float = 5.0) -> str:
    """What the server calls itself, with its version, where it has an OpenAPI document."""
    try:
        about: Any = get_json(f"{url}/openapi.json", None, timeout_s).get("info")
        return f"{about['title']} {about['version']}"
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return "which tells no version"


def get_json(url: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    """The JSON object at `url`; raises `OSError`, `ValueError` or `HTTPException`."""
    headers = {} if key is None else {"X-API-Key": key}
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=timeout_s
    ) as r:
        found: Any = json.loads(r.read())
    if not isinstance(found, dict):
        raise ValueError("the answer is no JSON object")
    return cast("dict[str, Any]", found)


def _models(answer: dict[str, Any]) -> dict[str, int | None]:
    listed: Any = answer.get("supported_models")
    found: dict[str, int | None] = {}
    for entry in cast("list[Any]", listed) if isinstance(listed, list) else []:
        told = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        name, window = told.get("model_name"), told.get("max_context_length")
        if isinstance(name, str):
            found[name] = window if isinstance(window, int) else None
    return found
