"""How many requests a server is given at once, and how many a minute."""

from __future__ import annotations

from collections.abc import Callable

from evalution_openai.retrying import Clock

_BURST_S = 1.0
"""Requests of this many seconds may go together, before the rate spaces them."""


class Pressure:
    """Requests in flight: halved when the server says 429, one more after each round of successes.

    Additive increase, multiplicative decrease, as in TCP (RFC 5681). Refusals of requests that
    were sent before the last decrease tell nothing new, and are not counted.
    """

    def __init__(self, clock: Clock, set_depth: Callable[[int], None], start: int, most: int):
        self._clock = clock
        self._set_depth = set_depth
        self._most = most
        self._depth = start
        self._credit = 0.0
        self._fell_at = float("-inf")

    @property
    def depth(self) -> int:
        return self._depth

    def refused(self, sent_at: float) -> None:
        """The server has too much to do, it says of a request that was sent then."""
        if sent_at < self._fell_at:
            return
        self._fell_at = self._clock.now()
        self._credit = 0.0
        self._change(max(1, self._depth // 2))

    def served(self) -> None:
        """A request was answered."""
        if self._depth >= self._most:
            return
        self._credit += 1 / self._depth
        if self._credit >= 1:
            self._credit = 0.0
            self._change(self._depth + 1)

    def _change(self, depth: int) -> None:
        self._depth = depth
        self._set_depth(depth)


class RateLimit:
    """Spaces what costs so much a minute: requests, or tokens (the generic cell rate algorithm)."""

    def __init__(self, clock: Clock, per_minute: int | None):
        self._clock = clock
        self._cost_s = 60.0 / per_minute if per_minute else 0.0
        self._free_at = float("-inf")

    async def take(self, amount: int = 1) -> None:
        """Wait until `amount` more keep within the rate."""
        if not self._cost_s:
            return
        now = self._clock.now()
        begin = max(self._free_at, now)
        self._free_at = begin + amount * self._cost_s
        if (wait := begin - now - _BURST_S) > 0:
            await self._clock.sleep(wait)

    def give_back(self, amount: int) -> None:
        """`amount` of what was taken wasn't used; negative: more was."""
        self._free_at -= amount * self._cost_s
