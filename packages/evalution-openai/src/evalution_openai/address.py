"""The address of a server, with and without `/v1`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import HttpUrl, ValidationError

from evalution_core import ConfigurationError
from evalution_core.redaction import redact_text

_VERSION = re.compile(r"/v\d+[a-z0-9]*(?=/|$)")
_ROUTES = ("/completions", "/models", "/responses")


@dataclass(frozen=True, slots=True)
class Address:
    """URLs of a server's routes: OpenAI's under `api`, its own under `root`."""

    api: str
    root: str

    @classmethod
    def parse(cls, base_url: str) -> Address:
        """Parse `base_url`, with or without `/v1`; another version in the path is kept.

        Raises:
            ConfigurationError: not an http or https URL, or one with a query or a single route.
        """
        base = base_url.rstrip("/")
        if not _is_http(base) or base.endswith(_ROUTES):
            raise ConfigurationError(
                "base_url must be an http or https URL such as http://127.0.0.1:8000/v1, without a "
                f"query and without a route like /chat/completions, got {redact_text(base_url)!r}"
            )
        if found := _VERSION.search(base, base.index("://") + len("://")):
            return cls(base, base[: found.start()] if found.end() == len(base) else base)
        return cls(f"{base}/v1", base)


def _is_http(text: str) -> bool:
    try:
        HttpUrl(text)  # it mends `http:/host`, which the client wouldn't
    except ValidationError:
        return False
    return bool(urlsplit(text).hostname) and not {" ", "?", "#"} & set(text)
