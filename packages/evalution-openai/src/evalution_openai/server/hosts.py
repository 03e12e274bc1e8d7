"""Names and addresses of machines, as far as it matters who can use them."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


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
