"""Runs one suite on a session: rows become requests as they are needed, answers become lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from contextlib import closing
from threading import Event
from typing import Any, TypeVar

from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text
from evalution.results import SampleResult, SuiteResult
from evalution.runs.answer_cache import CachedAnswers
from evalution.runs.in_flight import (
    InFlightSamples,
    OpenSample,
    SampleSource,
    UnexpectedAnswerError,
)
from evalution.runs.options import RunOptions
from evalution.scoring.metrics import Measure
from evalution.suites.suite import AnySuite, Sample
from evalution_core import (
    BaseInferenceSession,
    EngineRuntimeError,
    EvalutionError,
)
from evalution_core.requests import Output, Request

K = TypeVar("K", bound=Hashable)

_ERRORS_SHOWN = 20
_REPORT_S = 0.1


class ScoringError(EvalutionError, RuntimeError):
    """A suite could not make a score of an answer."""


def open_stream(
    session: BaseInferenceSession, suite: AnySuite, requests: Iterable[tuple[K, Request]]
) -> Iterable[tuple[K, Any]]:
    """Send the requests of `suite` to the call that serves them; events come unchecked."""
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
        cached: keeps each answer as it comes, and knows those of an earlier run.
        write: takes each sample as it is finished; a later one of the same row replaces it.
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
        cached: CachedAnswers,
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
        self._cached = cached
        self._write = write
        self._notices = notices
        self._in_flight = InFlightSamples(suite.request_kind)
        self._source = SampleSource(suite, name, options.limit, self._in_flight, cached, stop)
        with wrap_errors(f"suite {name!r}: tally"):
            self._tally = suite.make_accumulator()
        self._suite_options = suite.to_dict()
        self._failed: set[int] = set()
        self._first_failure: tuple[int, str] | None = None
        self._errors = list(cached.errors)
        self._retracted: dict[int, EvalutionError] = {}
        self._done = 0
        self._requests = 0
        self._truncated: set[int] | None = None
        self._notes: dict[int, str] = {}
        self._reported_at = 0.0

    def run(self) -> SuiteResult:
        """Run the suite and return its scores.

        Raises:
            EngineRuntimeError: the runtime died; what was finished before is written.
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
        for note, count in sorted(Counter(self._notes.values()).items()):
            text = f"{self._name}: {count} of {self._done} samples {note}"
            self._notices.append(mask_text(text))
        first = self._first_failure
        return SuiteResult(
            name=self._name,
            type=type(self._suite).__name__,
            options=self._suite_options,
            metrics=metrics,
            n=self._done,
            failed=len(self._failed),
            truncated=None if self._truncated is None else len(self._truncated),
            requests=self._requests,
            cached=self._source.cached_requests,
            provenance=dict(self._suite.provenance),
            seconds=time.perf_counter() - started,
            first_failure=None if first is None else f"row {first[0]}: {first[1]}",
            errors=self._errors,
        )

    def _run(self) -> None:
        for opened in self._source.read_cached():
            self._finish(opened)
        self._options.progress.samples_cached(self._done)
        with closing(self._stream()) as answers:
            for key, answer in answers:
                self._accept(key, answer)
        if self._source.is_stopped:
            raise KeyboardInterrupt
        for opened in self._source.read_unread():
            self._finish(opened)
        for opened in self._in_flight.give_up_all():
            self._finish(opened)
        self._retract_rows()
        self._check_count()

    def _stream(self) -> Generator[tuple[Any, Any]]:
        with wrap_errors(f"suite {self._name!r}"):
            answers = open_stream(self._session, self._suite, self._source.read_requests())
            try:
                for event in answers:
                    yield _to_pair(event)
            finally:
                # A plain iterator has none, and none is needed once it is dropped.
                if close := getattr(answers, "close", None):
                    close()

    def _accept(self, key: Any, answer: Any) -> None:
        try:
            opened, position = self._in_flight.accept(key, answer)
        except UnexpectedAnswerError as error:
            self._record_error(error)
            return
        self._keep(opened, position)
        if not opened.waiting:
            self._finish(opened)

    def _keep(self, opened: OpenSample, position: int) -> None:
        failure = opened.failures.get(position)
        if failure is None:
            try:
                self._cached.keep(opened.sample, position, opened.answers[position])
                return
            except EngineRuntimeError as error:  # an answer with a value that no file can hold
                failure = error
        opened.failures[position] = self._cached.keep_failure(opened.sample, position, failure)

    def _finish(self, opened: OpenSample) -> None:
        sample = opened.sample
        result = SampleResult(self._name, sample.index, sample.prompt, sample.target)
        self._done += 1
        self._requests += len(sample.requests)
        if (error := opened.error or self._score(result, opened)) is not None:
            self._fail(result, error, self._measure_failure(sample))
        result.tokens = self._tokens(sample.index, list(opened.answers.values()))
        self._write(result)
        if time.monotonic() - self._reported_at >= _REPORT_S:
            self._report()
        if error is not None:
            self._check_failures(sample.index, error)

    def _check_failures(self, index: int, error: EvalutionError) -> None:
        latest = f"suite {self._name!r}, row {index}: {error}"
        self._options.failures.check(self._failed_before + len(self._failed), latest)

    def _report(self) -> None:
        # What a person sees finished is on disk.
        self._cached.flush()
        self._reported_at = time.monotonic()
        self._options.progress.sample_finished(self._done, len(self._failed), self._tally.running)

    def _measure_failure(self, sample: Sample) -> Mapping[str, Measure]:
        with wrap_errors(f"suite {self._name!r}, row {sample.index}: failure", ScoringError):
            return self._suite.failure(sample)

    def _score(self, result: SampleResult, opened: OpenSample) -> EvalutionError | None:
        try:
            with wrap_errors(f"suite {self._name!r}, row {result.index}", ScoringError):
                score = self._suite.score(opened.sample, opened.ordered_answers)
                result.metrics = self._tally.record(result.index, score)
                result.prediction = score.prediction
                result.extracted = score.extracted
                if score.remark is not None:
                    self._notes[result.index] = score.remark
        except EvalutionError as error:
            return error
        return None

    def _check_count(self) -> None:
        if self._done != self._expected:
            self._errors.append(
                f"{self._expected} samples were checked before the run, but there were "
                f"{self._done} in it: the data changed meanwhile"
            )

    def _fail(
        self, result: SampleResult, error: Exception, measures: Mapping[str, Measure] | None = None
    ) -> None:
        self._failed.add(result.index)
        result.metrics = self._tally.fail(result.index, measures)
        result.error = mask_text(f"{type(error).__name__}: {error}")
        failure = (result.index, result.error)
        # Rows finish in any order; the same run names the same first failure.
        self._first_failure = min(self._first_failure or failure, failure)

    def _record_error(self, error: UnexpectedAnswerError) -> None:
        index, text = error.index, mask_text(str(error))
        if index is None:
            if text not in self._errors and len(self._errors) < _ERRORS_SHOWN:
                self._errors.append(text)
                self._cached.keep_error(text)
            return
        if index not in self._retracted:
            self._retracted[index] = self._cached.retract(index, error)
            self._failed.add(index)
            self._check_failures(index, error)

    def _retract_rows(self) -> None:
        """Fail the rows whose answers can't be trusted.

        Their samples are made once more: only a sample says what its failure counts as.
        """
        left = dict(self._retracted)
        for sample in self._source.read_again() if left else ():
            if (error := left.pop(sample.index, None)) is not None:
                result = SampleResult(self._name, sample.index, sample.prompt, sample.target)
                self._fail_later(result, error, self._measure_failure(sample))
        for index, error in left.items():  # the rows are others by now
            self._fail_later(SampleResult(self._name, index), error)

    def _fail_later(
        self, result: SampleResult, error: Exception, measures: Mapping[str, Measure] | None = None
    ) -> None:
        self._fail(result, error, measures)
        self._notes.pop(result.index, None)
        if self._truncated is not None:
            self._truncated.discard(result.index)
        self._write(result)

    def _tokens(self, index: int, answers: list[Output]) -> dict[str, int]:
        counted = {
            "prompt": _sum_counts(answers, "prompt_tokens"),
            "completion": _sum_counts(answers, "completion_tokens"),
            "scored": _sum_counts(answers, "token_count"),
            "truncated": _sum_counts(answers, "truncated_tokens"),
        }
        if counted["truncated"] is not None:
            self._truncated = self._truncated or set()
            if counted["truncated"]:
                self._truncated.add(index)
        return {name: count for name, count in counted.items() if count is not None}


def _sum_counts(answers: list[Output], name: str) -> int | None:
    counts = [count for a in answers if (count := getattr(a, name, None)) is not None]
    return sum(map(int, counts)) if counts else None


def _to_pair(event: Any) -> tuple[Any, Any]:
    try:
        key, answer = event
    except (TypeError, ValueError):
        raise EngineRuntimeError(
            f"the session must give pairs of a request's key and an answer, got {event!r}"
        ) from None
    return key, answer
