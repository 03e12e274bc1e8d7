"""What ends a request that nobody waits for any more."""

from __future__ import annotations


class ClientGoneError(Exception):
    """The client went away, or stopped reading, before its answer was complete."""
