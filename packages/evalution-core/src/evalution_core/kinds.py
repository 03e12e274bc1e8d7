"""The table of request kinds: for each its types, its two calls and the capability it needs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import Enum
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


class RequestKind(Enum):
    """Kind of a request, which one pair of a session's calls serves; the value is its label.

    The runner, the journal, workers, the server and the kit read this table and list no kinds
    themselves; docs/decisions/0019 names the files that a new kind touches.
    """

    GENERATION = (
        "generation",
        GenerationRequest("a", max_new_tokens=1),
        GenerationOutput,
        "generate",
        Capability.GENERATE,
    )
    LOGLIKELIHOOD = (
        "loglikelihood",
        LoglikelihoodRequest("a", "b"),
        LoglikelihoodOutput,
        "loglikelihood",
        Capability.LOGLIKELIHOOD,
    )
    ROLLING = (
        "rolling",
        RollingLoglikelihoodRequest("a"),
        RollingLoglikelihoodOutput,
        "loglikelihood_rolling",
        Capability.ROLLING,
    )

    def __new__(cls, label: str, *_: object) -> RequestKind:
        kind = object.__new__(cls)
        kind._value_ = label
        return kind

    def __init__(
        self,
        label: str,
        example: Request,
        output: type[Output],
        list_call: str,
        capability: Capability,
    ):
        self.label = label
        self.example = example
        """A request as short as can be."""
        self.request: type[Request] = type(example)
        self.output = output
        self.list_call = list_call
        """Name of the session's method that answers a list of them."""
        self.continuous_call = f"{list_call}_continuous"
        """Name of the session's method that answers a stream of them."""
        self.capability = capability

    def answer(self, session: BaseInferenceSession, requests: Sequence[Request]) -> list[Any]:
        """Outputs of the session's list call, in the order of the requests."""
        return getattr(session, self.list_call)(requests)

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


_BY_TYPE = {found: kind for kind in RequestKind for found in (kind.request, kind.output)}


def find_kind(value: object) -> RequestKind | None:
    """Return the kind of a request or output, or of one of their classes.

    None for anything else, such as a subclass, which may hold fields that nothing knows of.
    """
    owner = value if isinstance(value, type) else type(value)
    return _BY_TYPE.get(cast("type[Request] | type[Output]", owner))
