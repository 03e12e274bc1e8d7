"""Rolling scores as a stream: the contract has them as list calls alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

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

K = TypeVar("K")
Request = RollingLoglikelihoodRequest
Answer = RollingLoglikelihoodOutput | RequestFailure

_WINDOW = 16


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
    """Answers in input order, computed `batch_size` at a time or as many as the session prefers.

    A refused request becomes a `RequestFailure` of its own; its neighbours are scored. A session
    that `StreamsRolling` answers in its own order, as it does all this by itself.
    """
    if isinstance(session, StreamsRolling):
        yield from session.loglikelihood_rolling_continuous(requests, batch_size=batch_size)
        return
    preferred = session.preferred_batch_size if isinstance(session, HasPreferredBatchSize) else None
    source = iter(requests)
    while window := list(islice(source, batch_size or preferred or _WINDOW)):
        yield from _window(session, window, batch_size)


def _window(
    session: BaseInferenceSession, window: Sequence[tuple[K, Request]], batch_size: int | None
) -> Iterator[tuple[K, Answer]]:
    requests = [request for _, request in window]
    try:
        outputs = session.loglikelihood_rolling(requests, batch_size=batch_size)
    except (InvalidRequestError, UnsupportedRequestError) as error:
        yield from _isolated(session, window, batch_size, error)
        return
    if len(outputs) != len(window):
        raise EngineRuntimeError(
            f"the session answered {len(outputs)} of {len(window)} rolling requests: which, it "
            "doesn't say",
        )
    yield from zip((key for key, _ in window), outputs, strict=True)


def _isolated(
    session: BaseInferenceSession,
    window: Sequence[tuple[K, Request]],
    batch_size: int | None,
    error: InvalidRequestError | UnsupportedRequestError,
) -> Iterator[tuple[K, Answer]]:
    failures: dict[int, EvalutionError] = dict(error.failures)
    if not failures:
        if len(window) == 1:
            failures = {0: error}
        else:
            for pair in window:
                yield from _window(session, [pair], batch_size)
            return
    good = [pair for position, pair in enumerate(window) if position not in failures]
    for position, failure in failures.items():
        key, request = window[position]
        yield key, RequestFailure(failure, request.metadata)
    if good:
        yield from _window(session, good, batch_size)
