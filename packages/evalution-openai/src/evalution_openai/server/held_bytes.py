"""How much of what clients send is held at once."""

from __future__ import annotations

from evalution_openai.server.problems import Problem


class HeldBytes:
    """Bytes of bodies, each from when it came to the end of its answer.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int):
        self.total = 0
        self._limit = limit

    def check_room(self, size: int) -> None:
        """Raise a `Problem` (429) unless that many more may come."""
        if self.total + size > self._limit:
            raise Problem(
                429,
                f"the bodies of the requests that run or wait have {self.total} bytes; with this "
                f"one there would be more than the {self._limit} that are held; try again",
                kind="rate_limit_error",
                code="bodies_full",
                headers={"Retry-After": "1", "Connection": "close"},
            )


class HeldBody:
    """The share of one body."""

    def __init__(self, held: HeldBytes):
        self._held = held
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes that came; raises as `HeldBytes.check_room`."""
        self._held.check_room(size)
        self._held.total += size
        self._size += size

    def let_go(self) -> None:
        self._held.total -= self._size
        self._size = 0
