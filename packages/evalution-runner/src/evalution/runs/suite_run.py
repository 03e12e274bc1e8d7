"""Runs one suite on a session: rows become requests as they are needed, answers become lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import closing
from threading import Event
from typing import Any, TypeVar

from evalution.error_boundary import wrap_errors
from evalution.journal.store import KnownAnswers
from evalution.redaction import mask_text
from evalution.results import SampleResult, SuiteResult
from evalution.runs.in_flight import InFlightSamples, OpenSample, SampleSource
from evalution.runs.options import RunOptions
from evalution.runs.token_record import TokenRecorder
from evalution.suites.suite import AnySuite, Sample
from evalution_core import (
    BaseInferenceSession,
    EngineRuntimeError,
    EvalutionError,
)
from evalution_core.requests import Output, Request

K = TypeVar("K", bound=Hashable)

_REPORT_S = 0.1


class ScoringError(EvalutionError, RuntimeError):
    """A suite could not make a score of an answer."""


def call_session(
    session: BaseInferenceSession, suite: AnySuite, requests: Iterable[tuple[K, Request]]
) -> Iterable[tuple[K, Any]]:
    """Return what `session` yields for `requests`, which it reads when it has room; unchecked."""
    call = getattr(session, suite.request_kind.continuous_call)
    return call(requests, batch_size=suite.batch_size)


class SuiteRun:
    """One pass of a suite over a session.

    Held at any time: the samples in flight; the number of each row that was read, and two numbers
    for each of its metrics.

    Args:
        name: the suite's name in this run.
        options: the limit of rows, the progress, and the failures that end the run.
        expected: how many samples there were when the rows were checked.
        failed_before: how many samples failed in the suites before this one.
        known: keeps each answer as it comes, and knows those of an earlier run.
        write: takes each sample as it is finished.
        notices: gets a sentence for each note that the scores of several samples share.
        stop: once set, what is in flight is finished and the rest left out.
    """

    def __init__(
        self,
        suite: AnySuite,
        name: str,
        session: BaseInferenceSession,
        *,
        options: RunOptions,
        expected: int,
        failed_before: int,
        known: KnownAnswers,
        write: Callable[[SampleResult], None],
        notices: list[str],
        stop: Event,
    ):
        self._suite = suite
        self._name = name
        self._session = session
        self._options = options
        self._expected = expected
        self._failed_before = failed_before
        self._known = known
        self._write = write
        self._notices = notices
        self._in_flight = InFlightSamples(suite.request_kind)
        self._recorder = TokenRecorder(session) if options.record_tokens else None
        prepare = self._recorder and self._recorder.prepare
        self._source = SampleSource(
            suite, name, options.limit, self._in_flight, known, stop, prepare
        )
        with wrap_errors(f"suite {name!r}: tally"):
            self._tally = suite.make_accumulator()
        self._suite_options = suite.to_dict()
        self._failed = 0
        self._first_failure: tuple[int, str] | None = None
        self._done = 0
        self._requests = 0
        self._truncated: int | None = None
        self._notes: Counter[str] = Counter()
        self._computed = 0
        self._reported_at = 0.0

    def run(self) -> SuiteResult:
        """Run the suite and return its scores.

        Raises:
            EngineRuntimeError: the runtime died, or the session answered a request that was not
                open; what was finished before is written.
            ConfigurationError: a row can't be read any more.
            TooManyFailuresError: more samples failed than the run allows.
            KeyboardInterrupt: `stop` was set.
        """
        started = time.perf_counter()
        try:
            self._run()
        finally:
            self._report()
        with wrap_errors(f"suite {self._name!r}: metrics", ScoringError):
            metrics = self._tally.results()
            notices = list(self._suite.list_notices(self._notes, self._done))
        if self._recorder is not None and self._recorder.notice is not None:
            notices.append(self._recorder.notice)
        self._notices.extend(mask_text(f"{self._name}: {notice}") for notice in notices)
        first = self._first_failure
        return SuiteResult(
            name=self._name,
            type=type(self._suite).__name__,
            options=self._suite_options,
            metrics=metrics,
            n=self._done,
            failed=self._failed,
            truncated=self._truncated,
            requests=self._requests,
            cached=self._source.cached_requests,
            provenance=dict(self._suite.provenance),
            seconds=time.perf_counter() - started,
            first_failure=None if first is None else f"row {first[0]}: {first[1]}",
            errors=self._find_errors(),
        )

    def _run(self) -> None:
        for opened in self._source.read_cached():
            self._finish(opened, asks_again=self._options.retry_failed)
        self._options.progress.samples_cached(self._done)
        self._computed = 0
        with closing(self._stream()) as answers:
            for key, answer in answers:
                self._accept(key, answer)
        if self._source.is_stopped:
            raise KeyboardInterrupt
        for opened in self._source.read_unread():
            self._finish(opened)
        for opened in self._in_flight.give_up_all():
            self._finish(opened)

    def _stream(self) -> Generator[tuple[Any, Any]]:
        with wrap_errors(f"suite {self._name!r}"):
            answers = call_session(self._session, self._suite, self._source.read_requests())
            try:
                for event in answers:
                    yield _to_pair(event)
            finally:
                # A plain iterator has none, and none is needed once it is dropped.
                if close := getattr(answers, "close", None):
                    close()

    def _accept(self, key: Any, answer: Any) -> None:
        opened, position = self._in_flight.accept(key, answer)
        self._keep(opened, position)
        if not opened.waiting:
            self._finish(opened)

    def _keep(self, opened: OpenSample, position: int) -> None:
        failure = opened.failures.get(position)
        if failure is None:
            try:
                self._known.keep(opened.sample, position, opened.answers[position])
                return
            except EngineRuntimeError as error:  # an answer with a value that no file can hold
                failure = error
        opened.failures[position] = self._known.keep_failure(opened.sample, position, failure)

    def _finish(self, opened: OpenSample, *, asks_again: bool = False) -> None:
        sample = opened.sample
        result = SampleResult(
            self._name, sample.index, sample.prompt, sample.target, group=sample.group
        )
        error = opened.error or self._score(result, opened)
        if asks_again and error is not None:  # an answer that is kept, and can't be scored
            self._source.ask_again(sample)
            return
        self._done += 1
        self._requests += len(sample.requests)
        if error is not None:
            self._fail(result, error, sample)
        result.tokens = self._tokens(list(opened.answers.values()))
        if self._recorder is not None:
            positions = range(len(sample.requests))
            result.token_logprobs = self._recorder.record(map(opened.answers.get, positions))
        self._write(result)
        if time.monotonic() - self._reported_at >= _REPORT_S:
            self._report()
        if error is not None:
            latest = f"suite {self._name!r}, row {sample.index}: {error}"
            self._options.failures.check(self._failed_before + self._failed, latest)

    def _report(self) -> None:
        # What a person sees finished is on disk.
        self._known.flush()
        self._reported_at = time.monotonic()
        if self._computed:
            self._options.progress.tokens_computed(self._computed)
            self._computed = 0
        self._options.progress.sample_finished(self._done, self._failed, self._tally.running)

    def _score(self, result: SampleResult, opened: OpenSample) -> EvalutionError | None:
        try:
            with wrap_errors(f"suite {self._name!r}, row {result.index}", ScoringError):
                score = self._suite.score(opened.sample, opened.ordered_answers)
                result.metrics = self._tally.record(result.index, score, result.group)
                result.prediction = score.prediction
                result.extracted = score.extracted
                if score.remarks:
                    self._notes.update(score.remarks)
        except EvalutionError as error:
            return error
        return None

    def _find_errors(self) -> list[str]:
        """Return what is wrong with the suite and belongs to no sample."""
        if self._done == self._expected:
            return []
        return [
            f"{self._expected} samples were checked before the run, but there were {self._done} in "
            "it: the data changed meanwhile"
        ]

    def _fail(self, result: SampleResult, error: Exception, sample: Sample) -> None:
        self._failed += 1
        with wrap_errors(f"suite {self._name!r}, row {sample.index}: failure", ScoringError):
            measures = self._suite.failure(sample)
        result.metrics = self._tally.fail(result.index, measures, result.group)
        result.error = mask_text(f"{type(error).__name__}: {error}")
        failure = (result.index, result.error)
        # Rows finish in any order; the same run names the same first failure.
        self._first_failure = min(self._first_failure or failure, failure)

    def _tokens(self, answers: list[Output]) -> dict[str, int]:
        counted = {
            "prompt": _sum_counts(answers, "prompt_tokens"),
            "completion": _sum_counts(answers, "completion_tokens"),
            "scored": _sum_counts(answers, "token_count"),
            "truncated": _sum_counts(answers, "truncated_tokens"),
        }
        if counted["truncated"] is not None:
            self._truncated = (self._truncated or 0) + bool(counted["truncated"])
        self._computed += (counted["completion"] or 0) + (counted["scored"] or 0)
        return {name: count for name, count in counted.items() if count is not None}


def _sum_counts(answers: list[Output], name: str) -> int | None:
    total = None
    for answer in answers:
        if (count := getattr(answer, name, None)) is not None:
            total = (total or 0) + int(count)
    return total


def _to_pair(event: Any) -> tuple[Any, Any]:
    try:
        key, answer = event
    except (TypeError, ValueError):
        raise EngineRuntimeError(
            f"the session must give pairs of a request's key and an answer, got {event!r}"
        ) from None
    return key, answer
