"""One call of lm-eval on a session: answers as they come, given back in the order asked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tqdm import tqdm

from evalution_core import EvalutionError, RequestFailure, RollingLoglikelihoodOutput
from evalution_lm_eval.upstream import CacheHook, Instance

_log = logging.getLogger(__name__)
V = TypeVar("V")
OnFailure = Literal["raise", "worst"]


class FailedRequestError(EvalutionError, RuntimeError):
    """A request of lm-eval has no answer; the message names its task and document."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The requests of one of lm-eval's calls, and the session's call that answers them.

    `arguments` are what lm-eval caches an answer by. `counts` is the model's: `failed` requests
    counted as the worst answer, and `truncated` ones had a prompt or context that was cut to fit.
    """

    kind: str
    call: Callable[..., Iterator[tuple[Any, Any]]]
    arguments: Sequence[tuple[Any, ...]]
    instances: Sequence[Instance]
    cache: CacheHook
    on_failure: OnFailure
    batch_size: int | None
    show_progress: bool
    counts: Counter[str]

    def collect(
        self, requests: Iterable[Any], convert: Callable[[Any], V], worst: V | None = None
    ) -> list[V]:
        """Return the values, each added to lm-eval's cache as it comes; cuts are one warning.

        Args:
            requests: as the session takes them.
            convert: makes a value of an output.
            worst: the value of a failed request, if it may count as one.

        Raises:
            FailedRequestError: a request failed or was left unanswered, unless it may count as the
                worst answer; one that may isn't cached, so with a cache it may not.
        """
        found: dict[int, V] = {}
        cuts: dict[int, int] = {}
        title = f"Running {self.kind} requests"
        with tqdm(total=len(self.arguments), desc=title, disable=not self.show_progress) as bar:
            for number, answer in self.call(enumerate(requests), batch_size=self.batch_size):
                if isinstance(answer, RequestFailure):
                    found[number] = self._replace_failed(worst, number, answer.error)
                else:
                    found[number] = self._convert(convert, number, answer)
                    if not isinstance(answer, RollingLoglikelihoodOutput):
                        cuts[number] = answer.truncated_tokens or 0
                bar.update()
        self._report_truncation({number: cut for number, cut in cuts.items() if cut})
        for number in range(len(self.arguments)):
            if number not in found:
                raise FailedRequestError(f"{self._name(number)}: the session left it unanswered")
        return [found[number] for number in range(len(self.arguments))]

    def _convert(self, convert: Callable[[Any], V], number: int, answer: Any) -> V:
        try:
            value = convert(answer)
        except EvalutionError as error:
            raise FailedRequestError(f"{self._name(number)}: {error}") from error
        self.cache.add_partial(self.kind, self.arguments[number], value)
        return value

    def _report_truncation(self, cuts: Mapping[int, int]) -> None:
        self.counts["truncated"] += len(cuts)
        if cuts:
            first, tokens = next(iter(cuts.items()))
            _log.warning(
                "%d of %d %s requests were longer than the model takes and were cut from the left; "
                "the first that was answered: %s, by %d tokens",
                len(cuts),
                len(self.arguments),
                self.kind,
                self._name(first),
                tokens,
            )

    def _replace_failed(self, worst: V | None, number: int, error: EvalutionError) -> V:
        failure = f"{self._name(number)}: {type(error).__name__}: {error}"
        if self.on_failure == "raise" or worst is None or self.cache.dbdict is not None:
            raise FailedRequestError(failure) from error
        _log.warning("%s; it counts as the worst answer", failure)
        self.counts["failed"] += 1
        return worst

    def _name(self, number: int) -> str:
        named = f"{self.kind} request {number}"
        if not self.instances:
            return named
        instance = self.instances[number]
        return f"{named} (task {instance.task_name}, document {instance.doc_id})"
