"""The answers of one suite: kept in the run's journal, looked up there and in a cache of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalution.journal import (
    AnswerBase,
    DamagedAnswerError,
    Journal,
    decode_answer,
    encode_answer,
    make_cache_key,
    make_request_key,
)
from evalution.suites.suite import Sample
from evalution_core import EvalutionError, GenerationRequest, RequestFailure
from evalution_core.requests import Output, Request


class CachedAnswers:
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
        retracted, errors = self._section("retracted"), self._section("errors")
        known = {} if journal is None else journal.read_declared(retracted, errors)
        self._retracted: dict[str, str] = known.get(retracted, {})
        self._reopened = set(self._retracted) if retry_failed else set[str]()
        self._errors: list[str] = known.get(errors, [])
        self._is_declared = True

    @property
    def is_empty(self) -> bool:
        """True if there is no answer for any sample of this suite."""
        is_new = self._journal is None or not self._journal.has_answers(self._suite)
        return is_new and self._cache is None

    def find(self, sample: Sample) -> Mapping[int, Output | RequestFailure]:
        """Return the answers that are known already, by position."""
        found: dict[int, Output | RequestFailure] = {}
        if (encoded := self._retracted.get(str(sample.index))) is not None:
            if str(sample.index) in self._reopened:
                return found
            requests = enumerate(sample.requests)
            return {position: decode_answer(encoded, request) for position, request in requests}
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
        self._restore(sample.index)
        self._record(sample.index, position, request, encoded)
        if self._cache is not None and (key := make_cache_key(self._base, request)) is not None:
            self._cache.record(key, encoded, suite="", row=0, position=0)

    def keep_failure(self, sample: Sample, position: int, error: EvalutionError) -> EvalutionError:
        """Keep why a request has no answer; return the error as `find` will give it."""
        if self._journal is None:
            return error
        encoded = encode_answer(RequestFailure(error))
        self._restore(sample.index)
        self._record(sample.index, position, sample.requests[position], encoded)
        return _decode_error(encoded)

    @property
    def errors(self) -> Sequence[str]:
        """The errors that `keep_error` was given for this suite, now or before a restart."""
        return self._errors

    def keep_error(self, text: str) -> None:
        """Keep an error of the session that belongs to no sample."""
        self._errors.append(text)
        self._is_declared = False

    def retract(self, index: int, error: EvalutionError) -> EvalutionError:
        """Keep why a row's answers can't be trusted; return the error as `find` will give it.

        `find` gives it for each of the row's requests, whatever was kept of them.
        """
        if self._journal is None:
            return error
        encoded = self._retracted[str(index)] = encode_answer(RequestFailure(error))
        self._reopened.discard(str(index))
        self._is_declared = False
        return _decode_error(encoded)

    def flush(self) -> None:
        """Commit all that was kept."""
        # Not at each of them: a session that answers all twice would write their list again as
        # often as there are rows.
        if self._journal is not None and not self._is_declared:
            self._is_declared = True
            sections = {"retracted": self._retracted, "errors": self._errors}
            self._journal.declare({self._section(n): v for n, v in sections.items()})
        for store in (self._journal, self._cache):
            if store is not None:
                store.flush()

    def _section(self, name: str) -> str:
        return f"{name} of {self._suite}"

    def _restore(self, index: int) -> None:
        """Count a row that was retracted and asked again as any other from now on."""
        if self._reopened and (row := str(index)) in self._reopened:
            self._reopened.remove(row)
            del self._retracted[row]
            self._is_declared = False

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
