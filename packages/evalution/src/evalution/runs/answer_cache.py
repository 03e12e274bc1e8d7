"""Where finished answers are kept while a suite runs, as the execution sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from evalution.exchange import Answer, Request
from evalution.journal import (
    AnswerBase,
    Journal,
    cache_key,
    decode_answer,
    encode_answer,
    request_key,
)
from evalution.suites.suite import Sample
from evalution_core import EvalutionError, GenerationRequest, RequestFailure


class AnswerStore(Protocol):
    """Answers of one suite, by sample and position of the request.

    `recall` may be called from the thread on which a session reads its input.
    """

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to recall for any sample."""
        ...

    def recall(self, sample: Sample) -> Mapping[int, Answer | RequestFailure]:
        """The answers that are known already, by position."""
        ...

    def keep(self, sample: Sample, position: int, answer: Answer) -> None:
        """Keep an answer.

        Raises:
            EngineRuntimeError: it holds a value that can't be written down.
        """
        ...

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        """Keep why a request has no answer; returns the error as `recall` will give it."""
        ...

    @property
    def faults(self) -> Sequence[str]:
        """What `keep_fault` was told of this suite, now or in an earlier part of the run."""
        ...

    def keep_fault(self, text: str) -> None:
        """Keep a fault of the session that belongs to no sample."""
        ...

    def withdraw(self, index: int, error: EvalutionError) -> EvalutionError:
        """Keep why a row's answers can't be trusted; returns the error as `recall` will give it.

        `recall` gives it for each of the row's requests, whatever was kept of them.
        """
        ...

    def flush(self) -> None:
        """Have all that was kept on disk when this returns."""
        ...


class NoAnswers:
    """Keeps nothing, for a run without a folder."""

    is_empty = True
    faults: Sequence[str] = ()

    def recall(self, sample: Sample) -> Mapping[int, Answer | RequestFailure]:
        return {}

    def keep(self, sample: Sample, position: int, answer: Answer) -> None: ...

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        return error

    def keep_fault(self, text: str) -> None: ...

    def withdraw(self, index: int, error: EvalutionError) -> EvalutionError:
        return error

    def flush(self) -> None: ...


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
        withdrawn, faults = self._section("withdrawn"), self._section("faults")
        known = {} if journal is None else journal.declared(withdrawn, faults)
        self._withdrawn: dict[str, str] = known.get(withdrawn, {})
        self._reopened = set(self._withdrawn) if retry_failed else set[str]()
        self._faults: list[str] = known.get(faults, [])
        self._is_declared = True

    @property
    def is_empty(self) -> bool:
        """Whether neither holds an answer for this suite."""
        is_new = self._journal is None or not self._journal.holds(self._suite)
        return is_new and self._cache is None

    def recall(self, sample: Sample) -> Mapping[int, Answer | RequestFailure]:
        found: dict[int, Answer | RequestFailure] = {}
        if (encoded := self._withdrawn.get(str(sample.index))) is not None:
            if str(sample.index) in self._reopened:
                return found
            requests = enumerate(sample.requests)
            return {position: decode_answer(encoded, request) for position, request in requests}
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
        self._close_again(sample.index)
        self._journal_answer(sample.index, position, request, encoded)
        if self._cache is not None and (key := cache_key(self._base, request)) is not None:
            self._cache.record(key, encoded, suite="", row=0, position=0)

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        request = sample.requests[position]
        encoded = encode_answer(RequestFailure(error))
        self._close_again(sample.index)
        self._journal_answer(sample.index, position, request, encoded)
        return _recalled_error(encoded)

    @property
    def faults(self) -> Sequence[str]:
        return self._faults

    def keep_fault(self, text: str) -> None:
        self._faults.append(text)
        self._is_declared = False

    def withdraw(self, index: int, error: EvalutionError) -> EvalutionError:
        encoded = self._withdrawn[str(index)] = encode_answer(RequestFailure(error))
        self._reopened.discard(str(index))
        self._is_declared = False
        return _recalled_error(encoded)

    def flush(self) -> None:
        # Not at each of them: a session that answers all twice would write their list anew as
        # often as there are rows.
        if self._journal is not None and not self._is_declared:
            self._is_declared = True
            sections = {"withdrawn": self._withdrawn, "faults": self._faults}
            self._journal.declare_all({self._section(n): v for n, v in sections.items()})
        for store in (self._journal, self._cache):
            if store is not None:
                store.flush()

    def _section(self, name: str) -> str:
        return f"{name} of {self._suite}"

    def _close_again(self, index: int) -> None:
        """A row that was taken back and asked again counts as any other from now on."""
        if self._reopened and (row := str(index)) in self._reopened:
            self._reopened.remove(row)
            del self._withdrawn[row]
            self._is_declared = False

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


def _recalled_error(encoded: str) -> EvalutionError:
    recalled = decode_answer(encoded, GenerationRequest())
    assert isinstance(recalled, RequestFailure)
    return recalled.error
