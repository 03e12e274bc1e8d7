"""Settings of a server: limits, key and log, and the names of this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, TypedDict

from pydantic import Field, PositiveInt

from evalution_core import ConfigurationError, secret, validate_options

_BODIES_HELD = 8
"""The default room for all bodies together, in bodies of the greatest length."""


class ServerOptions(TypedDict, total=False):
    """The fields of `ServerSettings`, as keyword arguments."""

    model_name: str | None
    api_key: str | None
    max_concurrent: int | None
    max_queue: int
    max_body_bytes: int
    max_held_bytes: int | None
    max_prompts: int
    max_text: int | None
    body_timeout_s: float
    any_host: bool
    log_requests: bool
    log_prompts: bool


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits, key and log of a server."""

    declared_as: ClassVar[str] = "server"

    model_name: Annotated[
        str | None, Field(description="Name of the served model. None: the model's own.")
    ] = None
    api_key: Annotated[
        Annotated[str, Field(min_length=8)] | None,
        Field(
            description="Key that clients send as bearer token or `X-Api-Key`. None: no key is "
            "needed."
        ),
    ] = secret()
    max_concurrent: Annotated[
        PositiveInt | None,
        Field(
            description="Prompts of one stream that the session works on at once; streamed answers "
            "and whole ones, long prompts, and requests with one prompt and with several have a "
            "stream each. None: the session decides."
        ),
    ] = None
    max_queue: Annotated[
        int, Field(ge=0, description="Requests that may wait beyond those; one more gets 429.")
    ] = 512
    max_body_bytes: Annotated[PositiveInt, Field(description="Greatest length of a body.")] = (
        16 * 1024 * 1024
    )
    max_held_bytes: Annotated[
        PositiveInt | None,
        Field(
            description="Bytes of all bodies that are received, run or wait at once; a request "
            "beyond them gets 429. None: eight times `max_body_bytes`."
        ),
    ] = None
    max_prompts: Annotated[
        PositiveInt, Field(description="Prompts, or requests to score, in one body.")
    ] = 1024
    max_text: Annotated[
        PositiveInt | None,
        Field(
            description="Characters, or token ids, of one text or conversation; a longer one gets "
            "400. None: a million (2**20), or eight for each token that the model takes."
        ),
    ] = None
    body_timeout_s: Annotated[
        float, Field(gt=0, description="Seconds for a client to send its body.")
    ] = 30.0
    any_host: Annotated[
        bool,
        Field(
            description="Without a key, listen on any address, and accept requests over the "
            "loopback device for any host name. Otherwise it must be `localhost` or an address of "
            "that device, so that no web page reaches the server under a DNS name of its own."
        ),
    ] = False
    log_requests: Annotated[
        bool, Field(description="Log a line for each request, without its content.")
    ] = True
    log_prompts: Annotated[bool, Field(description="Log the bodies of requests too.")] = False

    def __post_init__(self) -> None:
        validate_options(self)
        if self.body_budget < self.max_body_bytes:
            raise ConfigurationError(
                f"max_held_bytes={self.max_held_bytes} leaves no room for one body of "
                f"max_body_bytes={self.max_body_bytes}; raise it, or lower the other"
            )

    @property
    def body_budget(self) -> int:
        if self.max_held_bytes is not None:
            return self.max_held_bytes
        return _BODIES_HELD * self.max_body_bytes


def check_bind(host: str, settings: ServerSettings) -> None:
    """Raise `ConfigurationError` for an address that others can reach, without a key.

    `any_host` allows it explicitly; only addresses of the loopback device can't be reached.
    """
    if settings.api_key is None and not settings.any_host and not is_loopback(host):
        raise ConfigurationError(
            f"host {host} lets everybody who reaches this machine use the model; set a key with "
            "--api-key-env NAME (in Python api_key), or say --public-without-key (any_host) as well"
        )


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return whether a name or an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
