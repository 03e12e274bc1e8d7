"""The answers of one suite: kept in the run's journal, looked up there and in a cache of runs."""

from __future__ import annotations

from collections.abc import Mapping

from evalution.journal import (
    AnswerBase,
    Journal,
    cache_key,
    decode_answer,
    encode_answer,
    request_key,
)
from evalution.suites.suite import Answer, Request, Sample
from evalution_core import EvalutionError, RequestFailure


class SuiteAnswers:
    """An `AnswerStore` over a journal, a cache, or both.

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
        retry_failed: bool,
    ):
        self._suite = suite
        self._base = base
        self._journal = journal
        self._cache = cache
        self._retry_failed = retry_failed
        self._section = f"withdrawn from {suite}"
        known = {} if journal is None else journal.declared()
        self._withdrawn: set[int] = set(known.get(self._section, ()))

    @property
    def is_empty(self) -> bool:
        """Whether neither holds an answer for this suite."""
        is_new = self._journal is None or not self._journal.count(self._suite)
        return is_new and self._cache is None

    def recall(self, sample: Sample) -> Mapping[int, Answer | RequestFailure]:
        found: dict[int, Answer | RequestFailure] = {}
        if sample.index in self._withdrawn:
            return found
        for position, request in enumerate(sample.requests):
            answer = self._from_journal(sample.index, position, request)
            if answer is None and (answer := self._from_cache(request)) is not None:
                self._journal_answer(sample.index, position, request, encode_answer(answer))
            if answer is not None:
                found[position] = answer
        return found

    def keep(self, sample: Sample, position: int, answer: Answer) -> None:
        request = sample.requests[position]
        encoded = encode_answer(answer)
        self._journal_answer(sample.index, position, request, encoded)
        if self._cache is not None and (key := cache_key(self._base, request)) is not None:
            self._cache.record(key, encoded, suite="", row=0, position=0)

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        request = sample.requests[position]
        encoded = encode_answer(RequestFailure(error))
        self._journal_answer(sample.index, position, request, encoded)
        recalled = decode_answer(encoded, request)
        assert isinstance(recalled, RequestFailure)
        return recalled.error

    def forget(self, index: int) -> None:
        self._withdrawn.add(index)
        if self._journal is not None:
            self._journal.declare(self._section, sorted(self._withdrawn))

    def flush(self) -> None:
        for store in (self._journal, self._cache):
            if store is not None:
                store.flush()

    def _from_journal(
        self, row: int, position: int, request: Request
    ) -> Answer | RequestFailure | None:
        key = self._key(row, position, request)
        if self._journal is None or key is None or (found := self._journal.recall(key)) is None:
            return None
        answer = decode_answer(found, request)
        return None if self._retry_failed and isinstance(answer, RequestFailure) else answer

    def _from_cache(self, request: Request) -> Answer | RequestFailure | None:
        key = None if self._cache is None else cache_key(self._base, request)
        if self._cache is None or key is None or (found := self._cache.recall(key)) is None:
            return None
        return decode_answer(found, request)

    def _journal_answer(self, row: int, position: int, request: Request, encoded: str) -> None:
        key = self._key(row, position, request)
        if self._journal is not None and key is not None:
            self._journal.record(key, encoded, suite=self._suite, row=row, position=position)

    def _key(self, row: int, position: int, request: Request) -> bytes | None:
        return request_key(
            self._base, suite=self._suite, row=row, position=position, request=request
        )
