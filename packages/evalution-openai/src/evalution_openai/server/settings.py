"""What an operator decides about a server: its limits, its key, its log."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

from evalution_core import ConfigurationError, hide, secret

_LEAST_KEY = 8
_BODIES_HELD = 8
"""Of the longest, where nobody says how much of all bodies together may be held."""


class ServerOptions(TypedDict, total=False):
    """The fields of `ServerSettings`, as keyword arguments."""

    model_name: str | None
    api_key: str | None
    max_concurrent: int | None
    max_queue: int
    max_body_bytes: int
    max_held_bytes: int | None
    max_prompts: int
    body_timeout_s: float
    any_host: bool
    log_requests: bool
    log_prompts: bool


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server.

    Options:
        model_name: the name under which the model is served; None: the model's own.
        api_key: what a client must send as bearer token or `X-Api-Key`; None: anybody may ask.
        max_concurrent: generation requests in the session at once; None: twice the batch size that
            the session prefers, so that a slot which gets free finds the next request waiting.
        max_queue: requests that may wait beyond those; one more is told to come back (429).
        max_body_bytes: the longest body of a request.
        max_held_bytes: all bodies that come, run or wait at once; a client that sends more is told
            to come back (429). None: eight of the longest.
        max_prompts: prompts, or requests to score, in one body.
        body_timeout_s: how long a client may take to send its body.
        any_host: without a key, requests that come over the loopback device are answered whatever
            name they ask for; else it must be `localhost` or an address of that device, so that no
            web page reaches the server under a name of its own (DNS rebinding).
        log_requests: a line in the log for each request, without its content.
        log_prompts: the bodies of requests in the log, too.
    """

    model_name: str | None = None
    api_key: str | None = secret()
    max_concurrent: int | None = None
    max_queue: int = 512
    max_body_bytes: int = 16 * 1024 * 1024
    max_held_bytes: int | None = None
    max_prompts: int = 1024
    body_timeout_s: float = 30.0
    any_host: bool = False
    log_requests: bool = True
    log_prompts: bool = False

    def __post_init__(self) -> None:
        hide(self)
        least = {
            "max_concurrent": 1,
            "max_queue": 0,
            "max_body_bytes": 1,
            "max_held_bytes": 1,
            "max_prompts": 1,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < bound):
                raise ConfigurationError(f"{name} must be an int >= {bound}, got {value!r}")
        if self.most_held_bytes < self.max_body_bytes:
            raise ConfigurationError(
                f"max_held_bytes={self.max_held_bytes} leaves no room for one body of "
                f"max_body_bytes={self.max_body_bytes}; raise it, or lower the other"
            )
        if not self.body_timeout_s > 0:
            raise ConfigurationError(f"body_timeout_s must be above 0, got {self.body_timeout_s!r}")
        if self.api_key is not None and len(self.api_key) < _LEAST_KEY:
            raise ConfigurationError(f"an API key needs at least {_LEAST_KEY} characters")

    @property
    def most_held_bytes(self) -> int:
        if self.max_held_bytes is not None:
            return self.max_held_bytes
        return _BODIES_HELD * self.max_body_bytes


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a name or an address leads to this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name or address in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
