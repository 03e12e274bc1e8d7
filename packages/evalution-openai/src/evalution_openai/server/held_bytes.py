"""How much of what clients send is held at once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from evalution_openai.server.problems import Problem


class HeldBytes:
    """Bytes of bodies, each from when it came to the end of its answer.

    Args:
        limit: how many there may be.
        changed: told of each new number.
    """

    def __init__(self, limit: int, changed: Callable[[float], None]):
        self._limit = limit
        self._changed = changed
        self._held = 0

    def check_room(self, size: int) -> None:
        """Raise a `Problem` (429) unless that many more may come."""
        if self._held + size > self._limit:
            raise Problem(
                429,
                f"the bodies of the requests that run or wait have {self._held} bytes; with this "
                f"one there would be more than the {self._limit} that are held; try again",
                kind="rate_limit_error",
                code="bodies_full",
                headers={"Retry-After": "1", "Connection": "close"},
            )

    @contextmanager
    def account(self) -> Generator[Callable[[int], None]]:
        """Gives what to call for the bytes of one body as they come; it raises as `check_room`."""
        size = 0

        def add(more: int) -> None:
            nonlocal size
            self.check_room(more)
            size += more
            self._set(self._held + more)

        try:
            yield add
        finally:
            self._set(self._held - size)

    def _set(self, held: int) -> None:
        self._held = held
        self._changed(held)
