"""When a failed exchange is tried again, and how long to wait before."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NoReturn, Protocol

from evalution_core import EngineRuntimeError, EvalutionError

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""What a second try may mend: time-outs, conflicts, overload, and a server that is in trouble."""


class Clock(Protocol):
    """Time as an endpoint sees it; a test's clock passes without waiting."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def today(self) -> datetime: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def today(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Backoff:
    """Waits that double, each drawn from the upper half of its range, so that clients spread out.

    The scheme is "equal jitter" of the AWS architecture blog, "Exponential Backoff And Jitter".
    """

    def __init__(self, chance: random.Random | None = None):
        self._chance = chance or random.Random()
        self._tries = 0

    def next_wait(self) -> float:
        """Seconds to wait before the next try."""
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**self._tries)
        self._tries += 1
        return self._chance.uniform(longest / 2, longest)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often: seconds of one try, seconds of all, and tries after the first."""

    timeout_s: float = 300.0
    deadline_s: float = 900.0
    max_retries: int = 5


@dataclass(slots=True)
class Failure:
    """Why a try failed, and how long the server wants to be left alone."""

    error: EvalutionError
    wait_s: float | None = None
    cause: Exception | None = None


@dataclass(slots=True)
class Attempts:
    """The tries of one exchange."""

    patience: Patience
    clock: Clock
    chance: random.Random
    begun: float
    made: int = 0
    backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.chance)

    @property
    def timeout_s(self) -> float:
        return max(0.0, min(self.patience.timeout_s, self._left))

    @property
    def _left(self) -> float:
        return self.begun + self.patience.deadline_s - self.clock.now()

    async def wait_after(self, failure: Failure) -> None:
        """Wait for the next try, or raise where none may follow."""
        self.made += 1
        if self.made > self.patience.max_retries:
            give_up(failure, f"given up after {self.made} tries (max_retries)")
        wait = max(self.backoff.next_wait(), failure.wait_s or 0.0)
        if wait > self._left:
            give_up(
                failure,
                f"given up after {self.made} tries: the next one would be in {wait:.1f} s, and "
                f"deadline_s={self.patience.deadline_s:g} has {max(0.0, self._left):.1f} s left",
            )
        await self.clock.sleep(wait)


def retry_after(headers: Mapping[str, str], today: datetime) -> float | None:
    """Seconds that a `Retry-After` header asks to wait, given as a number or as a date (RFC 9110).

    None where there is no such header, or none that can be read.
    """
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    zoned = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (zoned - today).total_seconds())


def give_up(failure: Failure, why: str) -> NoReturn:
    """Raise the failure of the last try as the failure of the exchange."""
    raise EngineRuntimeError(f"{failure.error}; {why}") from (failure.cause or failure.error)


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
