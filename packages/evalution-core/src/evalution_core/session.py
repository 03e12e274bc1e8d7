"""A loaded model, and the calls every suite makes on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from evalution_core.capabilities import Capability
from evalution_core.errors import (
    InvalidRequestError,
    UnsupportedRequestError,
)
from evalution_core.requests import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    StreamEvent,
)

K = TypeVar("K", bound=Hashable)

_CONTINUOUS_WINDOW = 64


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the self check found; `detail` says which comparison, with the largest difference."""

    outcome: Literal["passed", "failed", "not checkable"]
    detail: str
    max_difference: float | None = None


class BaseInferenceSession(ABC):
    """One loaded model. `build` made it; whoever called `build` closes it.

    List calls keep the order of their requests, check all of them first, and raise one
    `InvalidRequestError` (or `UnsupportedRequestError`) whose `failures` name the bad ones before
    anything ran. Continuous calls yield `(id, output or RequestFailure)` as requests finish.
    `batch_size` is a cap on what runs at once; None leaves it to the session.

    A subclass needs no `super().__init__()`. One that is written on this class directly keeps its
    closed state itself; the engine kit's `TokenSession` brings it along.
    """

    __slots__ = ()

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
        aborts what is in flight within a second.
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
        source = iter(requests)
        while window := list(islice(source, batch_size or _CONTINUOUS_WINDOW)):
            yield from self._scored_window(window, batch_size)

    def _scored_window(
        self, window: list[tuple[K, LoglikelihoodRequest]], batch_size: int | None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        try:
            outputs = self.loglikelihood([request for _, request in window], batch_size=batch_size)
        except (InvalidRequestError, UnsupportedRequestError) as error:
            if not error.failures:
                raise
            good = [pair for index, pair in enumerate(window) if index not in error.failures]
            for index, failure in error.failures.items():
                key, request = window[index]
                yield key, RequestFailure(failure, request.metadata)
            if good:
                yield from self._scored_window(good, batch_size)
            return
        yield from zip((key for key, _ in window), outputs, strict=True)

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        """As `generate_continuous`, with the text of each request as it becomes certain.

        Raises:
            UnsupportedRequestError: the engine doesn't declare `stream`.
        """
        raise UnsupportedRequestError(f"{type(self).__name__} can't stream")

    def check(self) -> CheckResult:
        """Compare the scoring path with the next-token path on a short known sequence.

        Runs once; later calls return the first result. A session whose check failed refuses to
        score.
        """
        return CheckResult("not checkable", "the session has no self check")

    def identity(self) -> dict[str, Any] | None:
        """What answers: revision or file hashes. None if unknowable: then nothing is cached."""
        return None

    @property
    def capabilities(self) -> frozenset[Capability] | None:
        """What this session can do, where that is known only now; None: as the engine declares."""
        return None

    def describe_execution(self) -> dict[str, Any] | None:
        """What is really in use, JSON-safe and without counters.

        Common keys: backend, device, dtype, batching, attention, max_model_len, fallback.
        """
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@runtime_checkable
class CancellableStream(Protocol):
    """What `generate_continuous` and `stream` may return: an iterator that can drop one request."""

    def cancel(self, key: Hashable) -> None:
        """Abort the request with that key, from any thread, and give nothing more of it.

        The runtime lets go of it as when a stream is closed; the other requests go on. A key that
        isn't under way changes nothing: one that is unknown or has ended, and one that the input
        has yet to give, whose request is served when it comes.
        """


class TextCodec(Protocol):
    """The tokenizer of a session, as callers may use it.

    `encode` gives the ids of a text alone, without special tokens added around it.
    """

    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


@runtime_checkable
class SpecialTokens(Protocol):
    """A tokenizer that also tells its special ids, as those of the engine kit do.

    `leading_ids` stand before any text by default: `(bos,)`, or none.
    """

    @property
    def leading_ids(self) -> tuple[int, ...]: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...


@runtime_checkable
class HasTokenizer(Protocol):
    """A session that lets callers tokenize as it does."""

    @property
    def tokenizer(self) -> TextCodec: ...


@runtime_checkable
class HasMaxModelLen(Protocol):
    """A session that knows how many tokens the model is fed at most when scoring."""

    @property
    def max_model_len(self) -> int: ...


@runtime_checkable
class HasPreferredBatchSize(Protocol):
    """A session that knows how many requests in flight suit it; the runner reads ahead by it."""

    @property
    def preferred_batch_size(self) -> int: ...


@runtime_checkable
class HasRequestsInFlight(Protocol):
    """A session whose runtime counts the requests that it is working on."""

    @property
    def requests_in_flight(self) -> int: ...
