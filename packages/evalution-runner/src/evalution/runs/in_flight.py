"""The samples of a suite on their way: read one by one, in flight, and answered in full.

No answer is lost, counted twice or taken for that of another request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import cast

from evalution.error_boundary import find_answer_problem, to_plain_score, wrap_errors
from evalution.journal.store import KnownAnswers
from evalution.suites.suite import AnySuite, Sample
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    RequestFailure,
)
from evalution_core.kinds import RequestKind
from evalution_core.requests import Output, Request

Key = tuple[int, int]
"""The row's index, and the position among its requests."""


@dataclass(slots=True)
class OpenSample:
    """A sample with requests in flight; answers and failures by position of the request."""

    sample: Sample
    waiting: set[int]
    answers: dict[int, Output] = field(default_factory=dict[int, Output])
    failures: dict[int, EvalutionError] = field(default_factory=dict[int, EvalutionError])

    @property
    def ordered_answers(self) -> Sequence[Output]:
        """The answers in the order of the requests."""
        return [self.answers[position] for position in range(len(self.answers))]

    @property
    def error(self) -> EvalutionError | None:
        """The error of its first failed request, in whatever order the answers came."""
        return self.failures[min(self.failures)] if self.failures else None


class InFlightSamples:
    """Samples between submission and their last answer.

    `open` may be called from another thread than the rest: a session reads its input on its own.
    """

    def __init__(self, kind: RequestKind):
        self._output = kind.output
        self._open: dict[int, OpenSample] = {}
        self._known: set[int] = set()

    def open(self, sample: Sample) -> list[Key]:
        """Note a sample as submitted; return the keys of its requests.

        Raises:
            ConfigurationError: the suite gave this index before, or one that is no int from 0; or
                the sample has no requests.
        """
        is_known = sample.index in self._known
        if is_known or type(sample.index) is not int or sample.index < 0:
            raise ConfigurationError(
                f"a suite's samples need an index of their own from 0, got {sample.index!r}"
                f"{' again' if is_known else ''}"
            )
        if not sample.requests:
            raise ConfigurationError(f"the sample of row {sample.index} has no requests")
        positions = range(len(sample.requests))
        self._open[sample.index] = OpenSample(sample, set(positions))
        self._known.add(sample.index)
        return [(sample.index, position) for position in positions]

    def forget(self, index: int) -> None:
        """Let a sample that is done be submitted again."""
        self._known.discard(index)

    def accept(self, key: Hashable, answer: object) -> tuple[OpenSample, int]:
        """Note an answer; return its sample, done once it waits for nothing, and the position.

        Raises:
            EngineRuntimeError: the key is of no open request.
        """
        opened, position = self._find(key)
        if position not in opened.waiting:
            opened.answers.pop(position, None)
            opened.failures[position] = EngineRuntimeError(
                f"the session answered request {position} of row {opened.sample.index} twice"
            )
        elif (error := self._find_error(answer)) is not None:
            opened.failures[position] = error
        else:
            opened.answers[position] = to_plain_score(cast(Output, answer))
        opened.waiting.discard(position)
        if not opened.waiting:
            self._open.pop(opened.sample.index)
        return opened, position

    def give_up(self, index: int, error: EvalutionError) -> OpenSample:
        """Remove an open sample that will not be answered; return it with that error."""
        opened = self._open.pop(index)
        opened.failures[0] = error
        return opened

    def give_up_all(self) -> list[OpenSample]:
        """Remove the samples that were never answered in full; return them with that error."""
        lost = sorted(self._open.values(), key=lambda opened: opened.sample.index)
        for opened in lost:
            missing = ", ".join(str(position) for position in sorted(opened.waiting))
            opened.failures[min(opened.waiting)] = EngineRuntimeError(
                f"the session ended without an answer to request {missing}"
            )
        self._open.clear()
        return lost

    def _find(self, key: Hashable) -> tuple[OpenSample, int]:
        match key:
            case (int(index), int(position)):
                pass
            case _:
                index = position = -1
        opened = self._open.get(index)
        if opened is not None and 0 <= position < len(opened.sample.requests):
            return opened, position
        if index in self._known:
            when = "after that row was done" if opened is None else "which has no such request"
            raise EngineRuntimeError(
                f"the session answered request {position} of row {index} {when}"
            )
        raise EngineRuntimeError(f"the session answered {key!r}, which was never asked")

    def _find_error(self, answer: object) -> EvalutionError | None:
        if isinstance(answer, RequestFailure):
            return _check_failure(answer.error)
        if not isinstance(answer, self._output):
            return EngineRuntimeError(
                f"the session answered with {answer!r}, not a {self._output.__name__}"
            )
        problem = find_answer_problem(answer)
        return None if problem is None else EngineRuntimeError(problem)


def _check_failure(error: object) -> EvalutionError:
    if isinstance(error, EvalutionError):
        return error
    return EngineRuntimeError(f"the session gave {error!r} as a request's failure")


class SampleSource:
    """A suite's samples as requests; the session may read them on a thread of its own.

    Args:
        name: the suite's name in this run.
        limit: at most that many rows, within the suite's own bound.
        known: answers that need not be computed again.
        stop: once set, no further request is given out.
        prepare: called with each sample that is read.
    """

    def __init__(
        self,
        suite: AnySuite,
        name: str,
        limit: int | None,
        in_flight: InFlightSamples,
        known: KnownAnswers,
        stop: Event,
        prepare: Callable[[Sample], None] | None = None,
    ):
        self._suite = suite
        self._prepare = prepare
        self._name = name
        self._limit = limit
        self._in_flight = in_flight
        self._known = known
        self._stop = stop
        self._samples: Iterator[Sample] | None = None
        self._count = 0
        self._lock = Lock()
        self._is_ended = False
        self._error: BaseException | None = None
        self._complete: set[int] = set()
        self._partial: set[int] = set()
        self.is_stopped = False
        self.cached_requests = 0

    def read_cached(self) -> Iterator[OpenSample]:
        """Yield the samples whose every answer is known; call it before anything else.

        Raises:
            ConfigurationError: a row can't be read.
        """
        if self._known.is_empty:
            return
        while (sample := self._read()) is not None:
            if self._stop.is_set():
                self.is_stopped = True
                return
            found = self._known.find(sample)
            if len(found) < len(sample.requests):
                if found:
                    self._partial.add(sample.index)
                continue
            self._complete.add(sample.index)
            yield self._accept(self._in_flight.open(sample), found)
        self._samples, self._count, self._is_ended = None, 0, False

    def ask_again(self, sample: Sample) -> None:
        """Have a sample that `read_cached` gave asked in full after all."""
        self._complete.discard(sample.index)
        self._in_flight.forget(sample.index)
        self.cached_requests -= len(sample.requests)

    def read_requests(self) -> Iterator[tuple[Key, Request]]:
        """Yield the requests to be computed, each in flight from then on."""
        while (taken := self._take()) is not None:
            sample, keys = taken
            for key in keys:
                if self._stop.is_set():
                    self.is_stopped = True
                    return
                yield key, sample.requests[key[1]]

    def read_unread(self) -> Iterator[OpenSample]:
        """Yield the samples the session left unread when it ended, each with that as its error.

        Raises:
            ConfigurationError: a row couldn't be read, which the session may have hidden.
        """
        if self._error is not None:
            raise self._error
        while (taken := self._take()) is not None:
            index = taken[0].index
            yield self._in_flight.give_up(
                index, EngineRuntimeError(f"the session ended before it read row {index}")
            )

    def _take(self) -> tuple[Sample, list[Key]] | None:
        with self._lock:
            if self._stop.is_set() and not self._is_ended:
                self.is_stopped = True
                return None
            if self._is_ended:
                return None
            try:
                while (sample := self._read()) is not None:
                    if sample.index not in self._complete:
                        return sample, self._open(sample)
            except BaseException as error:
                self._error, self._is_ended = error, True
                raise
            return None

    def _open(self, sample: Sample) -> list[Key]:
        keys = self._in_flight.open(sample)
        if sample.index not in self._partial:
            return keys
        found = self._known.find(sample)
        # One request at least goes to the session: a sample is finished where answers arrive.
        missing = [key for key in keys if key[1] not in found] or keys[-1:]
        if known := [key for key in keys if key not in missing]:
            self._accept(known, found)
        return missing

    def _accept(
        self, keys: Sequence[Key], found: Mapping[int, Output | RequestFailure]
    ) -> OpenSample:
        self.cached_requests += len(keys)
        return [self._in_flight.accept(key, found[key[1]])[0] for key in keys][-1]

    def _read(self) -> Sample | None:
        with wrap_errors(f"suite {self._name!r}, sample {self._count}", ConfigurationError):
            if self._samples is None:
                self._samples = iter(self._suite.samples(self._limit))
            sample = next(self._samples, None)
            if sample is None:
                self._is_ended = True
                return None
            if self._prepare is not None:
                self._prepare(sample)
            self._count += 1
            return sample
