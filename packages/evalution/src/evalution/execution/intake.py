"""What a session reads of a suite, and what it should have read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Event, Lock

from evalution.exchange import Answer, Request
from evalution.execution.answer_store import AnswerStore
from evalution.execution.ledger import Key, Ledger, OpenSample
from evalution.foreign_code import foreign_errors
from evalution.suites.suite import AnySuite, Sample
from evalution_core import ConfigurationError, EngineRuntimeError, RequestFailure


class Intake:
    """A suite's samples as requests; the session may read them on a thread of its own.

    Args:
        name: the suite's name in this run.
        limit: at most that many rows, besides the suite's own bound.
        store: answers that need not be asked for again.
        stop: once set, no further request is given out.
    """

    def __init__(
        self,
        suite: AnySuite,
        name: str,
        limit: int | None,
        ledger: Ledger,
        store: AnswerStore,
        stop: Event,
    ):
        self._suite = suite
        self._name = name
        self._limit = limit
        self._ledger = ledger
        self._store = store
        self._stop = stop
        self._samples: Iterator[Sample] | None = None
        self._count = 0
        self._lock = Lock()
        self._is_ended = False
        self._error: BaseException | None = None
        self._recalled: set[int] = set()
        self._begun: set[int] = set()
        self.is_stopped = False
        self.recalled_requests = 0

    def recalled(self) -> Iterator[OpenSample]:
        """The samples whose every answer is known; call it before anything else.

        Raises:
            ConfigurationError: a row can't be read.
        """
        if self._store.is_empty:
            return
        while (sample := self._read()) is not None:
            if self._stop.is_set():
                self.is_stopped = True
                return
            found = self._store.recall(sample)
            if len(found) < len(sample.requests):
                if found:
                    self._begun.add(sample.index)
                continue
            self._recalled.add(sample.index)
            yield self._answered(self._ledger.open(sample), found)
        self._samples, self._count, self._is_ended = None, 0, False

    def requests(self) -> Iterator[tuple[Key, Request]]:
        """The requests to be computed, each noted in the ledger as it is read."""
        while (taken := self._take()) is not None:
            sample, keys = taken
            for key in keys:
                if self._stop.is_set():
                    self.is_stopped = True
                    return
                yield key, sample.requests[key[1]]

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

    def reread(self) -> Iterator[Sample]:
        """All samples once more, after the rest.

        Raises:
            ConfigurationError: a row can't be read.
        """
        self._samples, self._count = None, 0
        while (sample := self._read()) is not None:
            yield sample

    def _take(self) -> tuple[Sample, list[Key]] | None:
        with self._lock:
            if self._stop.is_set() and not self._is_ended:
                self.is_stopped = True
                return None
            if self._is_ended:
                return None
            try:
                return self._next()
            except BaseException as error:
                self._error, self._is_ended = error, True
                raise

    def _next(self) -> tuple[Sample, list[Key]] | None:
        while (sample := self._read()) is not None:
            if sample.index not in self._recalled:
                return sample, self._opened(sample)
        return None

    def _opened(self, sample: Sample) -> list[Key]:
        keys = self._ledger.open(sample)
        if sample.index not in self._begun:
            return keys
        found = self._store.recall(sample)
        # One request at least goes to the session: a sample is finished where answers arrive.
        missing = [key for key in keys if key[1] not in found] or keys[-1:]
        if known := [key for key in keys if key not in missing]:
            self._answered(known, found)
        return missing

    def _answered(
        self, keys: Sequence[Key], found: Mapping[int, Answer | RequestFailure]
    ) -> OpenSample:
        self.recalled_requests += len(keys)
        return [self._ledger.accept(key, found[key[1]])[0] for key in keys][-1]

    def _read(self) -> Sample | None:
        with foreign_errors(f"suite {self._name!r}, sample {self._count}", ConfigurationError):
            if self._samples is None:
                self._samples = iter(self._suite.samples(self._limit))
            sample = next(self._samples, None)
            if sample is None:
                self._is_ended = True
                return None
            self._count += 1
            return sample
