"""Retries, rate limits, and a number of requests in flight that adapts to the server."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NoReturn

from evalution_core import EngineRuntimeError, EvalutionError
from evalution_openai.options import OpenAIOptions

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""Statuses that are retried: time-outs, conflicts, overload and failures of the server."""


class Clock:
    """Time as a connection sees it; a test's clock passes without waiting."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()

    def today(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


BUSY_STATUSES = frozenset({429, 503})
"""Statuses of a server that works, and has no room or isn't up yet."""


class RetryableError(Exception):
    """A try that failed.

    Attributes:
        error: its error.
        wait_s: the seconds that the server asks to wait; None: it asks for none.
        status: the status that the server answered; None: there was no answer to read.
    """

    def __init__(
        self, error: EvalutionError, wait_s: float | None = None, status: int | None = None
    ):
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s
        self.status = status

    def give_up(self, why: str) -> NoReturn:
        """Raise the error of this try, the last one, as that of the request."""
        raise EngineRuntimeError(f"{self.error}; {why}") from (self.__cause__ or self.error)


class RetryState:
    """The tries of one request: at most `max_retries` after the first, until `deadline_s` is over.

    For a busy server they are as many as the options allow. Each but the last ends after `early_s`.

    Waits between them double, each drawn from the upper half of its range so that clients spread
    out ("equal jitter" of the AWS architecture blog, "Exponential Backoff And Jitter").
    """

    def __init__(
        self,
        options: OpenAIOptions,
        max_retries: int,
        clock: Clock,
        chance: random.Random,
        early_s: float = math.inf,
    ):
        self._options = options
        self._max_retries = max_retries
        self._clock = clock
        self._chance = chance
        self._early_s = early_s
        self._begun = clock.now()
        self.failed = 0

    @property
    def timeout_s(self) -> float:
        """Return the seconds that the next try may take."""
        early_s = self._early_s if self.failed < self._max_retries else math.inf
        return max(0.0, min(self._options.timeout_s, self._left, early_s))

    @property
    def waited_s(self) -> float:
        """Return the seconds since the request began."""
        return self._clock.now() - self._begun

    @property
    def _left(self) -> float:
        return self._options.deadline_s - self.waited_s

    def limit_retries(self, failure: RetryableError) -> int:
        """Return the number of retries that a request has after such a failure."""
        is_busy = failure.status in BUSY_STATUSES
        return self._options.max_retries if is_busy else self._max_retries

    def plan_wait(self, failure: RetryableError) -> float:
        """Return the seconds until the next try, or raise if none is left."""
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**self.failed)
        self.failed += 1
        if self.failed > self.limit_retries(failure):
            failure.give_up(f"given up after {self.failed} tries (max_retries)")
        wait = max(self._chance.uniform(longest / 2, longest), failure.wait_s or 0.0)
        if wait > self._left:
            failure.give_up(
                f"given up after {self.failed} tries: the next one would be in {wait:.1f} s, and "
                f"deadline_s={self._options.deadline_s:g} has {max(0.0, self._left):.1f} s left"
            )
        return wait


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
    except (OverflowError, ValueError):
        return None
    zoned = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (zoned - today).total_seconds())


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
        self.depth = start
        self._credit = 0.0
        self._fell_at = float("-inf")

    def note_refusal(self, sent_at: float) -> None:
        """Count a 429 for a request that was sent at `sent_at`."""
        if sent_at < self._fell_at:
            return
        self._fell_at = self._clock.now()
        self._credit = 0.0
        self._change(max(1, self.depth // 2))

    def note_answer(self) -> None:
        """Count a request that was answered."""
        if self.depth >= self._most:
            return
        self._credit += 1 / self.depth
        if self._credit >= 1:
            self._credit = 0.0
            self._change(self.depth + 1)

    def _change(self, depth: int) -> None:
        self.depth = depth
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
