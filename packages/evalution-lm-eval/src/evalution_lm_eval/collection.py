"""One call of lm-eval on a session: answers as they come, given back in the order asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tqdm import tqdm

from evalution_core import EvalutionError, GenerationOutput, LoglikelihoodOutput, RequestFailure
from evalution_lm_eval.upstream import CacheHook, Instance

_log = logging.getLogger(__name__)
V = TypeVar("V")
OnFailure = Literal["raise", "worst"]


class FailedRequestError(EvalutionError, RuntimeError):
    """A request of lm-eval has no answer; the message names its task and document."""


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

    def collect(
        self,
        call: Callable[..., Iterator[tuple[int, Any]]],
        requests: Iterable[Any],
        convert: Callable[[Any], V],
        worst: V | None = None,
    ) -> list[V]:
        """Return the values, each added to lm-eval's cache as it comes; cuts are one warning.

        Args:
            call: a continuous call of the session.
            requests: what it answers.
            convert: makes a value of an output.
            worst: the value of a failed request, if it may count as one.

        Raises:
            FailedRequestError: a request failed or was left unanswered, unless it may count as the
                worst answer; one that may isn't cached, so with a cache it may not.
        """
        found: dict[int, V] = {}
        title = f"Running {self.kind} requests"
        with tqdm(total=len(self.arguments), desc=title, disable=not self.show_progress) as bar:
            for number, answer in call(enumerate(requests), batch_size=self.batch_size):
                if isinstance(answer, RequestFailure):
                    found[number] = self._replace_failed(worst, number, answer.error)
                else:
                    found[number] = self._convert(convert, number, answer)
                bar.update()
        self._warn_of_truncation()
        for number in range(len(self.arguments)):
            if number not in found:
                raise FailedRequestError(f"{self._name(number)}: the session left it unanswered")
        return [found[number] for number in range(len(self.arguments))]

    def _convert(self, convert: Callable[[Any], V], number: int, answer: Any) -> V:
        try:
            value = convert(answer)
        except EvalutionError as error:
            raise FailedRequestError(f"{self._name(number)}: {error}") from error
        self._count_truncated(number, answer)
        self.cache.add_partial(self.kind, self.arguments[number], value)
        return value

    def _count_truncated(self, number: int, answer: Any) -> None:
        if isinstance(answer, GenerationOutput | LoglikelihoodOutput) and answer.truncated_tokens:
            self._first_truncated = self._first_truncated or (
                f"{self._name(number)}, by {answer.truncated_tokens} tokens"
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

    def _replace_failed(self, worst: V | None, number: int, error: EvalutionError) -> V:
        failure = f"{self._name(number)}: {type(error).__name__}: {error}"
        if self.on_failure == "raise" or worst is None or self.cache.dbdict is not None:
            raise FailedRequestError(failure) from error
        _log.warning("%s; it counts as the worst answer", failure)
        self.failed += 1
        return worst

    def _name(self, number: int) -> str:
        if not self.instances:
            return f"{self.kind} request {number}"
        instance = self.instances[number]
        return (
            f"{self.kind} request {number} (task {instance.task_name}, document {instance.doc_id})"
        )
