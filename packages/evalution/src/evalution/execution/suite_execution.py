"""Runs one suite on a session: rows become requests as they are needed, answers become lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from threading import Event
from typing import Any

from evalution.exchange import Answer
from evalution.execution.answer_store import AnswerStore
from evalution.execution.intake import Intake
from evalution.execution.ledger import Ledger, OpenSample, UnexpectedAnswerError
from evalution.execution.session_answers import session_answers
from evalution.foreign_code import foreign_errors
from evalution.progress.reports import Progress
from evalution.results import SampleResult, SuiteResult
from evalution.scoring.metrics import Measure
from evalution.suites.suite import AnySuite
from evalution_core import BaseInferenceSession, EngineRuntimeError, EvalutionError, scrub

_ERRORS_SHOWN = 20
_TELL_S = 0.1


class ScoringError(EvalutionError, RuntimeError):
    """A suite could not make a score of an answer."""


class SuiteExecution:
    """One pass of a suite.

    Held at any time: the samples in flight; the number of each row that was read, and two numbers
    for each of its metrics.

    Args:
        name: the suite's name in this run.
        expected: how many samples there were when the rows were checked.
        limit: at most that many rows, besides the suite's own bound.
        write: takes each sample as it is finished; a later one of the same row replaces it.
        store: keeps each answer as it comes, and knows those of an earlier run.
        failed: told how many samples have failed and of the last; it may end the run.
        notice: told in the end how many samples share each remark of their scores.
        stop: once set, what is in flight is finished and the rest left out.
    """

    def __init__(
        self,
        suite: AnySuite,
        name: str,
        session: BaseInferenceSession,
        *,
        expected: int,
        limit: int | None,
        write: Callable[[SampleResult], None],
        progress: Progress,
        store: AnswerStore,
        failed: Callable[[int, str], None],
        notice: Callable[[str], None],
        stop: Event,
    ):
        self._suite = suite
        self._name = name
        self._session = session
        self._expected = expected
        self._options = suite.to_dict()
        self._write = write
        self._progress = progress
        self._store = store
        self._told_failed = failed
        self._notice = notice
        self._ledger = Ledger(suite.request_kind)
        self._intake = Intake(suite, name, limit, self._ledger, store, stop)
        with foreign_errors(f"suite {name!r}: tally"):
            self._tally = suite.make_accumulator()
        self._failed: set[int] = set()
        self._first_failure: tuple[int, str] | None = None
        self._errors = list(store.faults)
        self._withdrawn: dict[int, EvalutionError] = {}
        self._done = 0
        self._requests = 0
        self._truncated: set[int] | None = None
        self._remarks: dict[int, str] = {}
        self._told_at = 0.0

    def run(self) -> SuiteResult:
        """The suite's scores.

        Raises:
            EngineRuntimeError: the runtime died; what was finished before is written.
            ConfigurationError: a row can't be read any more.
            TooManyFailuresError: what `failed` raises.
            KeyboardInterrupt: it was told to stop.
        """
        started = time.perf_counter()
        try:
            self._run()
        finally:
            self._tell()
        with foreign_errors(f"suite {self._name!r}: metrics", ScoringError):
            metrics = self._tally.results()
        for remark, count in sorted(Counter(self._remarks.values()).items()):
            self._notice(scrub(f"{self._name}: {count} of {self._done} samples {remark}"))
        first = self._first_failure
        return SuiteResult(
            name=self._name,
            type=type(self._suite).__name__,
            options=self._options,
            metrics=metrics,
            n=self._done,
            failed=len(self._failed),
            truncated=None if self._truncated is None else len(self._truncated),
            requests=self._requests,
            recalled=self._intake.recalled_requests,
            provenance=dict(self._suite.provenance),
            seconds=time.perf_counter() - started,
            first_failure=None if first is None else f"row {first[0]}: {first[1]}",
            errors=self._errors,
        )

    def _run(self) -> None:
        for opened in self._intake.recalled():
            self._finish(opened)
        self._progress.samples_recalled(self._done)
        with closing(self._answers()) as answers:
            for key, answer in answers:
                self._accept(key, answer)
        if self._intake.is_stopped:
            raise KeyboardInterrupt
        for opened in self._intake.unread():
            self._finish(opened)
        for opened in self._ledger.unanswered():
            self._finish(opened)
        self._take_back()
        self._compare_count()

    def _answers(self) -> Generator[tuple[Any, Any]]:
        # A generator of our own can be closed, and closes the session's where that is one.
        with foreign_errors(f"suite {self._name!r}"):
            answers = session_answers(self._session, self._suite, self._intake.requests())
            try:
                for event in answers:
                    yield _pair(event)
            finally:
                if close := getattr(answers, "close", None):
                    close()

    def _accept(self, key: Any, answer: Any) -> None:
        try:
            opened, position = self._ledger.accept(key, answer)
        except UnexpectedAnswerError as error:
            self._complain(error)
            return
        self._keep(opened, position)
        if not opened.waiting:
            self._finish(opened)

    def _keep(self, opened: OpenSample, position: int) -> None:
        failure = opened.failures.get(position)
        if failure is None:
            try:
                self._store.keep(opened.sample, position, opened.answers[position])
                return
            except EngineRuntimeError as error:  # an answer with a value that no file can hold
                failure = error
        opened.failures[position] = self._store.keep_failure(opened.sample, position, failure)

    def _finish(self, opened: OpenSample) -> None:
        sample = opened.sample
        result = SampleResult(self._name, sample.index, sample.prompt, sample.target)
        self._done += 1
        self._requests += len(sample.requests)
        if (error := opened.error or self._score(result, opened)) is not None:
            self._fail(result, error, self._failure(sample))
        result.tokens = self._tokens(sample.index, list(opened.answers.values()))
        self._write(result)
        if time.monotonic() - self._told_at >= _TELL_S:
            self._tell()
        if error is not None:
            self._told_failed(
                len(self._failed), f"suite {self._name!r}, row {sample.index}: {error}"
            )

    def _tell(self) -> None:
        # What a person sees finished is on disk.
        self._store.flush()
        self._told_at = time.monotonic()
        self._progress.sample_finished(self._done, len(self._failed), self._tally.running)

    def _failure(self, sample: Any) -> Mapping[str, Measure]:
        with foreign_errors(f"suite {self._name!r}, row {sample.index}: failure", ScoringError):
            return self._suite.failure(sample)

    def _score(self, result: SampleResult, opened: OpenSample) -> EvalutionError | None:
        try:
            with foreign_errors(f"suite {self._name!r}, row {result.index}", ScoringError):
                score = self._suite.score(opened.sample, opened.in_order)
                result.metrics = self._tally.record(result.index, score)
                result.prediction = score.prediction
                result.extracted = score.extracted
                if score.remark is not None:
                    self._remarks[result.index] = score.remark
        except EvalutionError as error:
            return error
        return None

    def _compare_count(self) -> None:
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
        result.error = scrub(f"{type(error).__name__}: {error}")
        told = (result.index, result.error)
        # Rows finish in any order; the same run tells the same first failure.
        self._first_failure = min(self._first_failure or told, told)

    def _complain(self, error: UnexpectedAnswerError) -> None:
        index, text = error.index, scrub(str(error))
        if index is None:
            if text not in self._errors and len(self._errors) < _ERRORS_SHOWN:
                self._errors.append(text)
                self._store.keep_fault(text)
            return
        if index not in self._withdrawn:
            self._withdrawn[index] = self._store.withdraw(index, error)
            self._failed.add(index)
            self._told_failed(len(self._failed), f"suite {self._name!r}, row {index}: {error}")

    def _take_back(self) -> None:
        """Fail the rows whose answers turned out not to be trusted.

        Their samples are gone: they are made once more, since what a failure counts as is theirs.
        """
        left = dict(self._withdrawn)
        for sample in self._intake.reread() if left else ():
            if (error := left.pop(sample.index, None)) is not None:
                result = SampleResult(self._name, sample.index, sample.prompt, sample.target)
                self._fail_again(result, error, self._failure(sample))
        for index, error in left.items():  # the rows are others by now
            self._fail_again(SampleResult(self._name, index), error)

    def _fail_again(
        self, result: SampleResult, error: Exception, measures: Mapping[str, Measure] | None = None
    ) -> None:
        self._fail(result, error, measures)
        self._remarks.pop(result.index, None)
        if self._truncated is not None:
            self._truncated.discard(result.index)
        self._write(result)

    def _tokens(self, index: int, answers: list[Answer]) -> dict[str, int]:
        counted = {
            "prompt": _total(answers, "prompt_tokens"),
            "completion": _total(answers, "completion_tokens"),
            "scored": _total(answers, "token_count"),
            "truncated": _total(answers, "truncated_tokens"),
        }
        if counted["truncated"] is not None:
            self._truncated = self._truncated or set()
            if counted["truncated"]:
                self._truncated.add(index)
        return {name: count for name, count in counted.items() if count is not None}


def _total(answers: list[Answer], name: str) -> int | None:
    counts = [count for a in answers if (count := getattr(a, name, None)) is not None]
    return sum(map(int, counts)) if counts else None


def _pair(event: Any) -> tuple[Any, Any]:
    try:
        key, answer = event
    except (TypeError, ValueError):
        raise EngineRuntimeError(
            f"the session must give pairs of a request's key and an answer, got {event!r}"
        ) from None
    return key, answer
