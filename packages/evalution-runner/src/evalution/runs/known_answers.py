"""The answers of one suite: kept in the run's journal, looked up there and in a cache of runs."""

from __future__ import annotations

from collections.abc import Mapping

from evalution.journal.records import (
    AnswerBase,
    DamagedAnswerError,
    decode_answer,
    encode_answer,
    make_cache_key,
    make_request_key,
)
from evalution.journal.store import Journal
from evalution.suites.suite import Sample
from evalution_core import EvalutionError, GenerationRequest, RequestFailure
from evalution_core.requests import Output, Request


class KnownAnswers:
    """Answers of one suite by sample and position of the request; without files it keeps nothing.

    `find` may be called from the thread on which a session reads its input.

    Args:
        suite: the suite's name in this run.
        base: who answers.
        journal: the run folder's; None without one.
        cache: answers shared by runs; None unless one was asked for.
        retry_failed: take the failed requests of an earlier attempt for unanswered.
    """

    def __init__(
        self,
        suite: str,
        base: AnswerBase,
        journal: Journal | None,
        cache: Journal | None,
        *,
        retry_failed: bool = False,
    ):
        self._suite = suite
        self._base = base
        self._journal = journal
        self._cache = cache
        self._retry_failed = retry_failed

    @property
    def is_empty(self) -> bool:
        """True if there is no answer for any sample of this suite."""
        is_new = self._journal is None or not self._journal.has_answers(self._suite)
        return is_new and self._cache is None

    def find(self, sample: Sample) -> Mapping[int, Output | RequestFailure]:
        """Return the answers that are known already, by position."""
        found: dict[int, Output | RequestFailure] = {}
        for position, request in enumerate(sample.requests):
            answer = self._find_in_journal(sample.index, position, request)
            if answer is None and (answer := self._find_in_cache(request)) is not None:
                self._record(sample.index, position, request, encode_answer(answer))
            if answer is not None:
                found[position] = answer
        return found

    def keep(self, sample: Sample, position: int, answer: Output) -> None:
        """Keep an answer.

        Raises:
            EngineRuntimeError: it holds a value that can't be written down.
        """
        if self._journal is None and self._cache is None:
            return
        request = sample.requests[position]
        encoded = encode_answer(answer)
        self._record(sample.index, position, request, encoded)
        if self._cache is not None and (key := make_cache_key(self._base, request)) is not None:
            self._cache.record(key, encoded, suite="", row=0, position=0)

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        """Keep why a request has no answer; return the error as `find` will give it."""
        if self._journal is None:
            return error
        encoded = encode_answer(RequestFailure(error))
        self._record(sample.index, position, sample.requests[position], encoded)
        return _decode_error(encoded)

    def flush(self) -> None:
        """Commit all that was kept."""
        for store in (self._journal, self._cache):
            if store is not None:
                store.flush()

    def _find_in_journal(
        self, row: int, position: int, request: Request
    ) -> Output | RequestFailure | None:
        answer = _find(self._journal, self._key(row, position, request), request)
        return None if self._retry_failed and isinstance(answer, RequestFailure) else answer

    def _find_in_cache(self, request: Request) -> Output | RequestFailure | None:
        if self._cache is None:
            return None
        return _find(self._cache, make_cache_key(self._base, request), request)

    def _record(self, row: int, position: int, request: Request, encoded: str) -> None:
        key = self._key(row, position, request)
        if self._journal is not None and key is not None:
            self._journal.record(key, encoded, suite=self._suite, row=row, position=position)

    def _key(self, row: int, position: int, request: Request) -> bytes | None:
        if self._journal is None:
            return None
        return make_request_key(
            self._base, suite=self._suite, row=row, position=position, request=request
        )


def _find(
    journal: Journal | None, key: bytes | None, request: Request
) -> Output | RequestFailure | None:
    if journal is None or key is None or (found := journal.find(key)) is None:
        return None
    try:
        return decode_answer(found, request)
    except DamagedAnswerError:  # it is computed again
        return None


def _decode_error(encoded: str) -> EvalutionError:
    failure = decode_answer(encoded, GenerationRequest())
    assert isinstance(failure, RequestFailure)
    return failure.error
