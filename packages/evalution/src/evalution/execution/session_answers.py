"""The call of a session that serves a suite's requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeVar, cast

from evalution.exchange import Request
from evalution.execution.rolling import rolling_continuous
from evalution.suites.suite import AnySuite, RequestKind
from evalution_core import BaseInferenceSession

K = TypeVar("K", bound=Hashable)


def session_answers(
    session: BaseInferenceSession, suite: AnySuite, requests: Iterable[tuple[K, Request]]
) -> Iterator[tuple[K, Any]]:
    """What the session gives for the requests of `suite`, unchecked and in its own order."""
    keyed = cast("Iterable[tuple[K, Any]]", requests)
    match suite.request_kind:
        case RequestKind.GENERATION:
            return session.generate_continuous(keyed, batch_size=suite.batch_size)
        case RequestKind.LOGLIKELIHOOD:
            return session.loglikelihood_continuous(keyed, batch_size=suite.batch_size)
        case RequestKind.ROLLING:
            return rolling_continuous(session, keyed, batch_size=suite.batch_size)
