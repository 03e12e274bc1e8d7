"""A loaded model, and the calls every suite makes on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

from evalution_core.capabilities import GUIDE_CAPABILITIES, Capability
from evalution_core.errors import UnsupportedRequestError
from evalution_core.requests import (
    DistributionRequest,
    DistributionRows,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Request,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    StreamEvent,
)
from evalution_core.streams import WINDOW, open_stream, stream_windows

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Q = TypeVar("Q", bound=Request)
A = TypeVar("A")

_SCORABLE = LoglikelihoodRequest("The cat sat on", " the mat.")
_ROLLABLE = RollingLoglikelihoodRequest("The cat sat on the mat.")
"""Scored on a runtime in doubt that has scored nothing yet."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Facts about a session that stay the same while it is open.

    `capabilities` are what this session can do: at most what its engine declares.
    `max_model_len` is how many tokens the model can be fed when scoring, `preferred_batch_size` how
    many requests in flight suit the session; None: unknown.
    """

    capabilities: frozenset[Capability] = GUIDE_CAPABILITIES
    max_model_len: int | None = None
    preferred_batch_size: int | None = None


class TextCodec(Protocol):
    """The tokenizer of a session, as callers may use it."""

    @property
    def leading_ids(self) -> tuple[int, ...]:
        """Ids that stand before any text by default: `(bos,)`, or none."""
        ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone. Special tokens spelled out in it become their own ids."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a self check; `detail` says which comparison, with the largest difference."""

    outcome: Literal["passed", "failed", "not checkable"]
    detail: str
    max_difference: float | None = None


class _Default(Generic[T]):
    """A value of the class until a subclass has its own: a property, a field or an attribute."""

    def __init__(self, value: T):
        self._value = value

    def __get__(self, instance: object, owner: type) -> T:
        if instance is None:  # or a dataclass would take this for the default of its field
            raise AttributeError
        return self._value


class BaseInferenceSession(ABC):
    """One loaded model. `build` made it; whoever called `build` closes it.

    List calls keep the order of their requests, check all of them first, and raise one
    `InvalidRequestError` (or `UnsupportedRequestError`) whose `failures` name the bad ones before
    anything ran. Continuous calls yield `(id, output or RequestFailure)` as requests finish.
    `batch_size` is a cap on what runs at once, in place of the engine's option of that name; None
    leaves it to the session.

    `info` has what is known of the session, `tokenizer` its tokenizer where callers may use it, and
    `requests_in_flight` how many requests its runtime is working on, None where it doesn't count
    them. A subclass sets them as properties, fields or attributes; the defaults are the
    capabilities of the Engine Guide, None and None.

    A subclass needs no `super().__init__()`. One that is written on this class directly keeps its
    closed state itself; the engine kit's `TokenSession` brings it along.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def info(self) -> SessionInfo: ...
        @property
        def tokenizer(self) -> TextCodec | None: ...
        @property
        def requests_in_flight(self) -> int | None: ...

    else:
        info = _Default(SessionInfo())
        tokenizer = _Default(None)
        requests_in_flight = _Default(None)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of `info`: what this session can do, whatever its engine declares."""
        return self.info.capabilities

    @abstractmethod
    def generate(
        self, requests: list[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]: ...

    @abstractmethod
    def loglikelihood(
        self, requests: list[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]: ...

    @abstractmethod
    def loglikelihood_rolling(
        self, requests: list[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]: ...

    @abstractmethod
    def generate_continuous(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        """Complete requests as slots are free, yielding in completion order.

        `requests` may be endless and may wait for earlier results: it is consumed on another
        thread, no further ahead than can run plus a small bound. Closing the iterator early
        aborts what is in flight within a second. What is returned may be any iterator or generator;
        callers make a `RequestStream` of it by `open_stream`.
        """

    @abstractmethod
    def gc(self) -> None:
        """Release caches between suites; answers stay the same."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent; any other call afterwards is a `SessionClosedError`."""

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        """Score a stream in windows of `batch_size` (64 if None), in the order of the windows."""
        call = partial(self.loglikelihood, batch_size=batch_size)
        return _answer_in_windows(call, requests, batch_size, _SCORABLE)

    def loglikelihood_rolling_continuous(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[K, RollingLoglikelihoodOutput | RequestFailure]]:
        """Score a stream of texts; windows as in `loglikelihood_continuous`."""
        call = partial(self.loglikelihood_rolling, batch_size=batch_size)
        return _answer_in_windows(call, requests, batch_size, _ROLLABLE)

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        """As `generate_continuous`, with the text of each request as it becomes certain.

        Raises:
            UnsupportedRequestError: the engine doesn't declare `stream`.
        """
        raise UnsupportedRequestError(f"{type(self).__name__} can't stream")

    def distributions(
        self, requests: Iterable[tuple[K, DistributionRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, DistributionRows | RequestFailure]]:
        """Yield rows of log-probabilities in order: request by request, position by position.

        Rows of a request come in as many blocks as the session likes, so that memory is bounded by
        a block and not by a text; a `RequestFailure` ends its request, of which rows may have come.
        A block is valid until the next one is asked for.

        Raises:
            UnsupportedRequestError: the session lacks `distributions`.
        """
        raise UnsupportedRequestError(f"{type(self).__name__} can't give distributions")

    def check(self) -> CheckResult:
        """Compare the scoring path with the next-token path on a short known sequence.

        Runs once; later calls return the first result. A session whose check failed refuses to
        score.
        """
        return CheckResult("not checkable", "the session has no self check")

    def identity(self) -> dict[str, Any] | None:
        """Revision or file hashes of what answers; None if unknowable: then nothing is cached."""
        return None

    def describe_execution(self) -> dict[str, Any] | None:
        """Describe what is really in use, JSON-safe and without counters.

        Common keys: backend, device, dtype, batching, attention, max_model_len, fallback. `dtype`
        names the arithmetic, and what is narrower beside it, as in `bfloat16, cache in u8`.
        """
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer_in_windows(
    call: Callable[[list[Q]], Sequence[A]],
    requests: Iterable[tuple[K, Q]],
    batch_size: int | None,
    control: Q,
) -> Iterator[tuple[K, A | RequestFailure]]:
    window = batch_size or WINDOW
    return open_stream(partial(stream_windows, call, window=window, control=control), requests)
