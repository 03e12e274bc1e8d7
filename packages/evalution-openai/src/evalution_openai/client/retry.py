"""Retries, rate limits, and a number of requests in flight that adapts to the server."""

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
"""Statuses that are retried: time-outs, conflicts, overload and failures of the server."""


class Clock(Protocol):
    """Time as a connection sees it; a test's clock passes without waiting."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
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
    """Waits that double, each drawn from the upper half of its range so that clients spread out.

    The scheme is "equal jitter" of the AWS architecture blog, "Exponential Backoff And Jitter".
    """

    def __init__(self, chance: random.Random | None = None):
        self._chance = chance or random.Random()
        self._tries = 0

    def next_wait(self) -> float:
        """Return the seconds to wait before the next try."""
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**self._tries)
        self._tries += 1
        return self._chance.uniform(longest / 2, longest)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retrying: seconds for one try, seconds for all of them, tries after the first."""

    timeout_s: float = 300.0
    deadline_s: float = 900.0
    max_retries: int = 5


@dataclass(slots=True)
class Failure:
    """The error of a try, and the seconds that the server asks to wait."""

    error: EvalutionError
    wait_s: float | None = None
    cause: Exception | None = None


@dataclass(slots=True)
class RetryState:
    """The tries of one request."""

    policy: RetryPolicy
    clock: Clock
    chance: random.Random
    begun: float
    made: int = 0
    backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.chance)

    @property
    def timeout_s(self) -> float:
        return max(0.0, min(self.policy.timeout_s, self._left))

    @property
    def _left(self) -> float:
        return self.begun + self.policy.deadline_s - self.clock.now()

    async def wait_after(self, failure: Failure) -> None:
        """Wait for the next try, or raise if none is left."""
        self.made += 1
        if self.made > self.policy.max_retries:
            give_up(failure, f"given up after {self.made} tries (max_retries)")
        wait = max(self.backoff.next_wait(), failure.wait_s or 0.0)
        if wait > self._left:
            give_up(
                failure,
                f"given up after {self.made} tries: the next one would be in {wait:.1f} s, and "
                f"deadline_s={self.policy.deadline_s:g} has {max(0.0, self._left):.1f} s left",
            )
        await self.clock.sleep(wait)


def parse_retry_after(headers: Mapping[str, str], today: datetime) -> float | None:
    """Parse the seconds of a `Retry-After` header, a number or a date (RFC 9110).

    None without such a header, or if it is malformed.
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
    """Raise the failure of the last try as the failure of the request."""
    raise EngineRuntimeError(f"{failure.error}; {why}") from (failure.cause or failure.error)


_BURST_S = 1.0
"""Seconds' worth of requests that may be sent together before they are spaced."""


class AdaptiveConcurrency:
    """A number of requests in flight: halved by a 429, one more after each round of answers.

    Additive increase, multiplicative decrease, as in TCP (RFC 5681). A 429 for a request that was
    sent before the last decrease isn't counted: it belongs to the same overload.
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

    def note_refusal(self, sent_at: float) -> None:
        """Count a 429 for a request that was sent at `sent_at`."""
        if sent_at < self._fell_at:
            return
        self._fell_at = self._clock.now()
        self._credit = 0.0
        self._change(max(1, self._depth // 2))

    def note_answer(self) -> None:
        """Count a request that was answered."""
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
    """Spaces requests, or tokens, to a number a minute (the generic cell rate algorithm)."""

    def __init__(self, clock: Clock, per_minute: int | None):
        self._clock = clock
        self._cost_s = 60.0 / per_minute if per_minute else 0.0
        self._free_at = float("-inf")

    async def take(self, amount: int = 1) -> None:
        """Wait until `amount` more are within the rate."""
        if not self._cost_s:
            return
        now = self._clock.now()
        begin = max(self._free_at, now)
        self._free_at = begin + amount * self._cost_s
        if (wait := begin - now - _BURST_S) > 0:
            await self._clock.sleep(wait)

    def give_back(self, amount: int) -> None:
        """Return `amount` of what was taken and not used; negative if more was used."""
        self._free_at -= amount * self._cost_s
