"""Where a server's routes are."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx

from evalution_core import ConfigurationError
from evalution_openai.refusals import quote

_VERSION = re.compile(r"/v\d+[a-z0-9]*(?=/|$)")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server's routes are: OpenAI's under `api`, others beside it under `root`."""

    api: str
    root: str

    @classmethod
    def of(cls, base_url: str) -> Address:
        """`base_url` with or without `/v1`; a version further in stands, too, and adds none.

        Raises:
            ConfigurationError: it is no http or https URL, has a query, or names a single route.
        """
        base = base_url.rstrip("/")
        if not _is_address(base) or base.endswith("/completions"):
            raise ConfigurationError(
                "base_url must be an http or https URL such as http://127.0.0.1:8000/v1, without a "
                f"query and without a route like /chat/completions, got {quote(base_url)!r}"
            )
        if found := _VERSION.search(base):
            return cls(base, base[: found.start()] if found.end() == len(base) else base)
        return cls(f"{base}/v1", base)


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host) and not {"?", "#"} & set(text)
