"""What a session reads of a suite, and what it should have read."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from evalution.foreign_code import foreign_errors
from evalution.ledger import Key, Ledger, OpenSample
from evalution.suites.suite import AnySuite, Request, Sample
from evalution_core import ConfigurationError, EngineRuntimeError


class Intake:
    """A suite's samples as requests; the session may read them on a thread of its own.

    Args:
        name: the suite's name in this run.
        limit: at most that many rows, besides the suite's own bound.
    """

    def __init__(self, suite: AnySuite, name: str, limit: int | None, ledger: Ledger):
        self._suite = suite
        self._name = name
        self._limit = limit
        self._ledger = ledger
        self._samples: Iterator[Sample] | None = None
        self._count = 0
        self._lock = Lock()
        self._is_ended = False
        self._error: BaseException | None = None

    def requests(self) -> Iterator[tuple[Key, Request]]:
        """The requests of all samples, each noted in the ledger as it is read."""
        while (taken := self._take()) is not None:
            sample, keys = taken
            yield from zip(keys, sample.requests, strict=True)

    def unread(self) -> Iterator[OpenSample]:
        """The samples the session left unread when it ended, each with that as its error.

        Raises:
            ConfigurationError: a row couldn't be read, which the session may have kept to itself.
        """
        if self._error is not None:
            raise self._error
        while (taken := self._take()) is not None:
            index = taken[0].index
            yield self._ledger.withdraw(
                index, EngineRuntimeError(f"the session ended before it read row {index}")
            )

    def _take(self) -> tuple[Sample, list[Key]] | None:
        with self._lock:
            if self._is_ended:
                return None
            try:
                return self._next()
            except BaseException as error:
                self._error, self._is_ended = error, True
                raise

    def _next(self) -> tuple[Sample, list[Key]] | None:
        with foreign_errors(f"suite {self._name!r}, sample {self._count}", ConfigurationError):
            if self._samples is None:
                self._samples = iter(self._suite.samples(self._limit))
            sample = next(self._samples, None)
            if sample is None:
                self._is_ended = True
                return None
            self._count += 1
            return sample, self._ledger.open(sample)
