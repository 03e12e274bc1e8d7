"""The backend `tinker`: a client of a Tinker-compatible training server."""

from __future__ import annotations

import logging
import os
import threading
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.options import read_key
from evalution_core.redaction import redact_text
from evalution_training.backends import import_library
from evalution_training.models import NAME

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The client's own default."""
_REFUSED, _MOVED = (401, 403), (301, 302, 303, 307, 308)
_LONGEST_S = 86_400
_ENDING_S = 10.0
"""Seconds for ending the session at the server."""

_log = logging.getLogger(__name__)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would send the key to the address that an answer names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class TinkerConfig(BaseModel):
    """The address of the server, and the key and time for reaching it.

    `api_key_env`: name of the environment variable that holds the key, read when the model is
    prepared. `base_url`: the server; None is `TINKER_BASE_URL`, else the hosted service. `timeout`:
    seconds in which it must answer.
    """

    model_config = ConfigDict(extra="forbid")

    api_key_env: str = "TINKER_API_KEY"
    base_url: str | None = None
    timeout: float = Field(90.0, gt=0, le=_LONGEST_S)

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not value.isidentifier():
            raise ValueError(
                "must be the name of an environment variable; put the key into TINKER_API_KEY and "
                "leave this out"
            )
        return value


class TinkerBackend:
    """Connects to a server; `Tinker(…).attach(handles)` of evalution-tinker evaluates its model.

    Handles: `service_client`, `model_name`, `renderer_name`, `load_checkpoint_path`,
    `init_from_checkpoint`, `run_dir`. What trains the model puts its own `training_client` into
    them. The key is in none of them.
    """

    name: ClassVar[str] = "tinker"
    Config: ClassVar[type[BaseModel]] = TinkerConfig

    def __init__(self, **params: Any) -> None:
        self._config = TinkerConfig(**params)

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        """Make a client of the server, if it answers.

        Raises:
            ConfigurationError: the key's variable isn't set, or the server refuses the key.
            EngineUnavailableError: tinker isn't installed, or nothing answers in time.
        """
        tinker = import_library("tinker", "tinker")
        config = self._config
        key = read_key(config.api_key_env)
        if not key:
            raise ConfigurationError(
                f"backend 'tinker' reads its key from the environment variable "
                f"{config.api_key_env}, which isn't set; set it (for a server that asks for none, "
                f"to any text that begins with tml-), or name another with api_key_env"
            )
        url = (config.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")
        self._check_alive(url, key)
        return {
            "backend": "tinker",
            "service_client": tinker.ServiceClient(base_url=url, api_key=key),
            "model_name": model[NAME],
            "renderer_name": model.get("renderer_name"),
            "load_checkpoint_path": model.get("load_checkpoint_path"),
            "init_from_checkpoint": model.get("init_from_checkpoint"),
            "run_dir": run_dir,
        }

    def teardown(self, handles: dict[str, Any]) -> None:
        """End the session at the server, within ten seconds; the client's heartbeat keeps it."""
        if (service := handles.pop("service_client", None)) is not None:
            # On a thread: a client that can't connect holds the lock that its `close` takes.
            ending = threading.Thread(target=_end_session, args=(service,), daemon=True)
            ending.start()
            ending.join(_ENDING_S)

    def _check_alive(self, url: str, key: str) -> None:
        """Raise unless a server answers: without one, the client would retry endlessly."""
        shown = redact_text(url)
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"base_url of backend 'tinker' must begin with http:// or https://, got {shown!r}"
            )
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ConfigurationError(
                "base_url of backend 'tinker' holds a name and password, which aren't sent to the "
                f"server: leave them out of {shown!r}"
            )
        address, timeout = f"{url}/api/v1/get_server_capabilities", self._config.timeout
        request = urllib.request.Request(address, headers={"X-API-Key": key})
        try:
            _OPENER.open(request, timeout=timeout).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _MOVED:
                target = redact_text(error.headers.get("location", "another address"))
                raise ConfigurationError(
                    f"the server at {shown} redirects to {target}, which is not followed, so that "
                    "no key goes to another address; set base_url to the right one"
                ) from None
            if error.code in _REFUSED:
                raise ConfigurationError(
                    f"the server at {shown} refuses the key in {self._config.api_key_env} (HTTP "
                    f"{error.code})"
                ) from None
        except InvalidURL as error:
            raise ConfigurationError(
                f"base_url of backend 'tinker' is not a URL: {shown!r} ({redact_text(str(error))})"
            ) from None
        except (OSError, ValueError, HTTPException) as error:
            raise EngineUnavailableError(
                f"no Tinker-compatible server answers at {shown} within {timeout:g} s "
                f"({redact_text(str(error), (key,))}); start it, or name another with base_url"
            ) from None


def _end_session(service: Any) -> None:
    try:
        if hasattr(service, "close"):
            service.close("success").result(timeout=_ENDING_S)
        else:  # tinker 0.24 closes what is inside
            service.holder.close()
    except Exception as error:  # noqa: BLE001 - the server drops the session by itself then
        _log.info("the session at the server was not ended: %s", redact_text(str(error)))
