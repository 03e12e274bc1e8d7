"""From options to an endpoint: address, credentials, limits."""

from __future__ import annotations

import os
import random
import re
from typing import TYPE_CHECKING

from evalution_core import ConfigurationError, hide
from evalution_openai.address import Address
from evalution_openai.endpoint import Endpoint
from evalution_openai.pressure import RateLimit
from evalution_openai.retrying import Clock, Patience, SystemClock

if TYPE_CHECKING:
    import httpx

    from evalution_openai.engine import OpenAICompatible

_CREDENTIAL = re.compile(r"(?i)auth|cookie|cred|key|pass|secret|sig|token")
"""Names of headers whose values are taken out of answers, should a server repeat them."""


def open_endpoint(
    options: OpenAICompatible,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> Endpoint:
    """The server of `options`, not asked yet.

    Raises:
        ConfigurationError: `base_url` is no URL, or `api_key_env` names a variable that isn't set.
    """
    clock = clock or SystemClock()
    key = _key(options)
    headers = dict(options.extra_headers)
    if key:
        headers.setdefault("Authorization", f"Bearer {key}")
    secrets = [value for name, value in headers.items() if _CREDENTIAL.search(name)]
    return Endpoint(
        Address.of(options.base_url),
        patience=Patience(options.timeout_s, options.deadline_s, options.max_retries),
        headers=headers,
        credentials=[*secrets, key or ""],
        requests=RateLimit(clock, options.requests_per_minute),
        tokens=RateLimit(clock, options.tokens_per_minute),
        clock=clock,
        transport=transport,
        chance=chance,
    )


def _key(options: OpenAICompatible) -> str | None:
    if options.api_key is not None or options.api_key_env is None:
        return options.api_key
    key = os.environ.get(options.api_key_env)
    if not key:
        raise ConfigurationError(
            f"api_key_env names the environment variable {options.api_key_env!r}, which isn't set; "
            "set it to the key, or leave api_key_env out for a server that needs none"
        )
    hide(key, is_secret=True)
    return key
