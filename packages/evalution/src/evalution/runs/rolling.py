"""Rolling scores as a stream: the contract has them as list calls alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, NoReturn, Protocol, TypeVar, runtime_checkable

from evalution_core import (
    BaseInferenceSession,
    EngineRuntimeError,
    EvalutionError,
    HasPreferredBatchSize,
    InvalidRequestError,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)

K = TypeVar("K", bound=Hashable)
Request = RollingLoglikelihoodRequest
Answer = RollingLoglikelihoodOutput | RequestFailure

_WINDOW = 16
_PLAIN = RollingLoglikelihoodRequest("The cat sat on the mat.")
"""What is scored of a runtime in doubt that has scored no text of the stream yet."""


@runtime_checkable
class StreamsRolling(Protocol):
    """A session that takes rolling requests as a stream, which the contract doesn't ask for."""

    def loglikelihood_rolling_continuous(
        self, requests: Iterable[tuple[K, Request]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, Answer]]: ...


def rolling_continuous(
    session: BaseInferenceSession,
    requests: Iterable[tuple[K, Request]],
    *,
    batch_size: int | None,
) -> Iterator[tuple[K, Answer]]:
    """Answers in windows of `batch_size`, or of as many as the session prefers, in their order.

    A text that is refused, or with which alone the runtime fails, becomes a `RequestFailure` of its
    own; its neighbours are scored. A session that `StreamsRolling` does all this by itself.

    Raises:
        EngineRuntimeError: the runtime is dead: a text failed, and then one that should score.
            `in_flight` has the keys that were read and not answered.
    """
    if isinstance(session, StreamsRolling):
        yield from session.loglikelihood_rolling_continuous(requests, batch_size=batch_size)
        return
    preferred = session.preferred_batch_size if isinstance(session, HasPreferredBatchSize) else None
    windows: _Windows[K] = _Windows(session, batch_size)
    source = iter(requests)
    while window := list(islice(source, batch_size or preferred or _WINDOW)):
        yield from windows.answers(window)


class _Windows(Generic[K]):
    """The windows of one stream, each a list call, and its parts where that fails.

    A list call that raises tells neither what it had scored nor whether the runtime lives. So the
    parts are scored apart, down to a single text; and before that one is blamed, the control is
    scored again, which is the text that scored last.
    """

    def __init__(self, session: BaseInferenceSession, batch_size: int | None):
        self._session = session
        self._batch_size = batch_size
        self._control = _PLAIN

    def answers(self, window: Sequence[tuple[K, Request]]) -> Iterator[tuple[K, Answer]]:
        parts = [window]
        while parts:
            part = parts.pop()
            failures: dict[int, EvalutionError] = {}
            try:
                outputs = self._outputs(part)
            except (InvalidRequestError, UnsupportedRequestError) as error:
                failures = dict(error.failures) or ({0: error} if len(part) == 1 else {})
                parts += _apart(part, failures)
            except EngineRuntimeError as error:
                if len(part) > 1:
                    parts += _halves(part, error)
                    continue
                if not self._is_alive():
                    _end(error, [key for left in (part, *reversed(parts)) for key, _ in left])
                failures = {0: error}
            else:
                yield from self._answered(part, outputs)
            for position, failure in failures.items():
                key, request = part[position]
                yield key, RequestFailure(failure, request.metadata)

    def _outputs(self, part: Sequence[tuple[K, Request]]) -> list[RollingLoglikelihoodOutput]:
        requests = [request for _, request in part]
        return self._session.loglikelihood_rolling(requests, batch_size=self._batch_size)

    def _answered(
        self, part: Sequence[tuple[K, Request]], outputs: Sequence[RollingLoglikelihoodOutput]
    ) -> Iterator[tuple[K, Answer]]:
        if len(outputs) != len(part):
            raise EngineRuntimeError(
                f"the session answered {len(outputs)} of {len(part)} rolling requests: which, it "
                "doesn't say",
            )
        self._control = part[-1][1]
        yield from zip((key for key, _ in part), outputs, strict=True)

    def _is_alive(self) -> bool:
        try:
            self._session.loglikelihood_rolling([self._control], batch_size=self._batch_size)
        except (EngineRuntimeError, InvalidRequestError, UnsupportedRequestError):
            return False
        return True


def _apart(
    part: Sequence[tuple[K, Request]], failures: dict[int, EvalutionError]
) -> list[Sequence[tuple[K, Request]]]:
    """What is left of a part that was refused, the first at the end."""
    if not failures:
        return [[pair] for pair in reversed(part)]
    good = [pair for position, pair in enumerate(part) if position not in failures]
    return [good] if good else []


def _halves(
    part: Sequence[tuple[K, Request]], error: EngineRuntimeError
) -> list[Sequence[tuple[K, Request]]]:
    """A part in smaller ones, the first at the end: what `in_flight` names, then both halves."""
    lost = set(error.in_flight)
    named = [pair for position, pair in enumerate(part) if position in lost]
    rest = [pair for position, pair in enumerate(part) if position not in lost]
    if not rest:
        named, rest = [], named
    half = (len(rest) + 1) // 2
    return [smaller for smaller in (rest[half:], rest[:half], named) if smaller]


def _end(error: EngineRuntimeError, lost: Sequence[Hashable]) -> NoReturn:
    raise EngineRuntimeError(
        f"{error}; a text that should score fails too ({len(lost)} in flight)",
        in_flight=lost,
    ) from error.__cause__ or error
