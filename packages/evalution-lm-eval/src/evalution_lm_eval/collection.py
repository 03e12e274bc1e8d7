"""One call of lm-eval on a session: answers as they come, given back in the order asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from tqdm import tqdm

from evalution_core import EvalutionError, GenerationOutput, LoglikelihoodOutput, RequestFailure
from evalution_lm_eval.upstream import CacheHook, Instance

_log = logging.getLogger(__name__)
V = TypeVar("V")
OnFailure = Literal["raise", "worst"]


class FailedRequestError(EvalutionError, RuntimeError):
    """A request of lm-eval has no answer; the message names its task and document."""


class Stream(Protocol):
    """A continuous call of a session."""

    def __call__(
        self, requests: Iterable[tuple[int, Any]], *, batch_size: int | None = None
    ) -> Iterator[tuple[int, Any]]: ...


@dataclass(frozen=True, slots=True)
class Answering(Generic[V]):
    """A call and the conversion of its answers; `worst` replaces a failed one, if allowed."""

    stream: Stream
    value: Callable[[Any], V]
    worst: V | None = None


@dataclass(slots=True)
class Collection:
    """The requests of one of lm-eval's calls.

    `arguments` are what lm-eval caches an answer by. `failed` counts the requests that counted as
    the worst answer, `truncated` those whose prompt or context was cut to fit the model.
    """

    kind: str
    arguments: Sequence[tuple[Any, ...]]
    instances: Sequence[Instance]
    cache: CacheHook
    on_failure: OnFailure
    batch_size: int | None
    show_progress: bool
    failed: int = 0
    truncated: int = 0
    _first_truncated: str = ""

    def collect(self, answering: Answering[V], requests: Iterable[Any]) -> list[V]:
        """Return the values, each added to lm-eval's cache as it comes; cuts are one warning.

        Raises:
            FailedRequestError: a request failed or was left unanswered, unless it may count as the
                worst answer; one that may isn't cached, so with a cache it may not.
        """
        found: dict[int, V] = {}
        stream = answering.stream(enumerate(requests), batch_size=self.batch_size)
        title = f"Running {self.kind} requests"
        with tqdm(total=len(self.arguments), desc=title, disable=not self.show_progress) as bar:
            for number, answer in stream:
                if isinstance(answer, RequestFailure):
                    found[number] = self._worst(answering, number, answer.error)
                else:
                    found[number] = self._valued(answering, number, answer)
                bar.update()
        self._warn_of_truncation()
        missing = [number for number in range(len(self.arguments)) if number not in found]
        if missing:
            raise FailedRequestError(f"{self._named(missing[0])}: the session left it unanswered")
        return [found[number] for number in range(len(self.arguments))]

    def _valued(self, answering: Answering[V], number: int, answer: Any) -> V:
        try:
            value = answering.value(answer)
        except EvalutionError as error:
            raise FailedRequestError(f"{self._named(number)}: {error}") from error
        self._count_truncated(number, answer)
        self.cache.add_partial(self.kind, self.arguments[number], value)
        return value

    def _count_truncated(self, number: int, answer: Any) -> None:
        if isinstance(answer, GenerationOutput | LoglikelihoodOutput) and answer.truncated_tokens:
            self._first_truncated = self._first_truncated or (
                f"{self._named(number)}, by {answer.truncated_tokens} tokens"
            )
            self.truncated += 1

    def _warn_of_truncation(self) -> None:
        if self.truncated:
            _log.warning(
                "%d of %d %s requests were longer than the model takes and were cut from the left; "
                "the first that was answered: %s",
                self.truncated,
                len(self.arguments),
                self.kind,
                self._first_truncated,
            )

    def _worst(self, answering: Answering[V], number: int, error: EvalutionError) -> V:
        failure = f"{self._named(number)}: {type(error).__name__}: {error}"
        if self.on_failure == "raise" or answering.worst is None or self.cache.dbdict is not None:
            raise FailedRequestError(failure) from error
        _log.warning("%s; it counts as the worst answer", failure)
        self.failed += 1
        return answering.worst

    def _named(self, number: int) -> str:
        named = f"{self.kind} request {number}"
        if not self.instances:
            return named
        instance = self.instances[number]
        return f"{named} (task {instance.task_name}, document {instance.doc_id})"
