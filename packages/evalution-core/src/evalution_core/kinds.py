"""The kinds of request: for each its types, its two calls and the capability that it needs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from evalution_core.capabilities import Capability
from evalution_core.requests import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Output,
    Request,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.session import BaseInferenceSession
from evalution_core.streams import RequestStream, open_stream

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of request; `label` names it in files and messages."""

    label: str
    request: type[Request]
    output: type[Output]
    list_call: str
    """Name of the session's method that answers a list of them."""
    continuous_call: str
    """Name of the session's method that answers a stream of them."""
    capability: Capability

    def answer(
        self,
        session: BaseInferenceSession,
        requests: list[Any],
        *,
        batch_size: int | None = None,
    ) -> list[Any]:
        """Outputs of the session's list call, in the order of the requests."""
        return getattr(session, self.list_call)(requests, batch_size=batch_size)

    def open_stream(
        self,
        session: BaseInferenceSession,
        requests: Iterable[tuple[K, Any]],
        *,
        batch_size: int | None = None,
    ) -> RequestStream[K, Output | RequestFailure]:
        """The session's continuous call on these requests, as a stream whatever it returns."""
        call = partial(getattr(session, self.continuous_call), batch_size=batch_size)
        return open_stream(call, requests)


GENERATION = RequestKind(
    "generation",
    GenerationRequest,
    GenerationOutput,
    "generate",
    "generate_continuous",
    Capability.GENERATE,
)
LOGLIKELIHOOD = RequestKind(
    "loglikelihood",
    LoglikelihoodRequest,
    LoglikelihoodOutput,
    "loglikelihood",
    "loglikelihood_continuous",
    Capability.LOGLIKELIHOOD,
)
ROLLING = RequestKind(
    "rolling",
    RollingLoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    "loglikelihood_rolling",
    "loglikelihood_rolling_continuous",
    Capability.ROLLING,
)
REQUEST_KINDS = (GENERATION, LOGLIKELIHOOD, ROLLING)
"""Every kind of request that the contract has."""

_BY_TYPE = {found: kind for kind in REQUEST_KINDS for found in (kind.request, kind.output)}
_BY_LABEL = {kind.label: kind for kind in REQUEST_KINDS}


def find_kind(value: object) -> RequestKind | None:
    """Return the kind of a request or output, of one of their classes, or of a label.

    None for anything else, such as a subclass, which may hold fields that nothing knows of.
    """
    if isinstance(value, str):
        return _BY_LABEL.get(value)
    owner = value if isinstance(value, type) else type(value)
    return _BY_TYPE.get(cast("type[Request] | type[Output]", owner))
