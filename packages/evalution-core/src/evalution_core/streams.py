"""Results as they come: the stream that a continuous call returns, and list calls in windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, NoReturn, Self, TypeVar, cast

from evalution_core.errors import (
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    UnsupportedRequestError,
)
from evalution_core.requests import Request, RequestFailure, TextDelta, parse_item, read_metadata

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

WINDOW = 64
"""Requests that a list call gets at a time where a continuous call leaves it to the session."""


class RequestStream(Iterator[tuple[K, T_co]], Generic[K, T_co]):
    """Results of a continuous call in the order in which they come, as pairs of key and result.

    A stream belongs to one reader. `cancel` may be called from any thread.
    """

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Abort what is in flight and end the stream. Idempotent."""

    @abstractmethod
    def cancel(self, key: Hashable) -> None:
        """Abort the request with that key and yield nothing more of it; the others go on.

        A key that is not in flight changes nothing: one that is unknown or has ended, and one that
        the input has yet to give, whose request is served when it comes.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_stream(
    call: Callable[[Iterable[tuple[K, R]]], Iterable[tuple[K, T]]], requests: Iterable[tuple[K, R]]
) -> RequestStream[K, T]:
    """Return what a continuous call makes of `requests` as a `RequestStream`.

    A stream that the session returns is returned as it is. Of a plain iterator or generator,
    `cancel` can't abort a request: the session computes it to the end, and nothing is yielded of
    it.
    """
    source = _Input(requests)
    results = call(source)
    if isinstance(results, RequestStream):
        source.is_watched = False
        return cast("RequestStream[K, T]", results)
    return _IteratorStream(iter(results), source.in_flight)


class _Input(Iterator[tuple[K, R]]):
    """The input of a continuous call, with the keys that were given and have no result yet."""

    def __init__(self, requests: Iterable[tuple[K, R]]):
        self._requests = iter(requests)
        self.in_flight: set[Hashable] = set()
        self.is_watched = True

    def __next__(self) -> tuple[K, R]:
        pair = next(self._requests)
        if self.is_watched and not isinstance(parsed := parse_item(pair, 0), RequestFailure):
            self.in_flight.add(parsed[0])
        return pair


class _IteratorStream(RequestStream[K, T]):
    """A stream on an iterator of results."""

    __slots__ = ("_cancelled", "_in_flight", "_results")

    def __init__(self, results: Iterator[tuple[K, T]], in_flight: set[Hashable]):
        self._results = results
        self._in_flight = in_flight
        self._cancelled: set[Hashable] = set()

    def __next__(self) -> tuple[K, T]:
        while True:
            key, result = next(self._results)
            is_cancelled = key in self._cancelled
            if not isinstance(result, TextDelta):
                self._cancelled.discard(key)
                self._in_flight.discard(key)
            if not is_cancelled:
                return key, result

    def close(self) -> None:
        results, self._results = self._results, iter(())
        if isinstance(results, Generator):
            results.close()

    def cancel(self, key: Hashable) -> None:
        if key in self._in_flight:
            self._cancelled.add(key)


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


def stream_windows(
    call: Callable[[list[Q]], Sequence[A]],
    requests: Iterable[tuple[K, Q]],
    *,
    window: int,
    control: Q,
) -> Iterator[tuple[K, A | RequestFailure]]:
    """Answer a stream of requests by list calls, one window after the other.

    A request that is refused, or with which alone the runtime fails, becomes a `RequestFailure`;
    its neighbours are answered. A list call that raises says neither what it had computed nor
    whether the runtime works. So a window that fails is tried again in parts, down to a single
    request, and before that one is blamed the request that was answered last is tried again.

    Args:
        call: the list call.
        requests: read one window ahead at most.
        window: requests in one call.
        control: tried on a runtime in doubt that has answered nothing yet.

    Raises:
        EngineRuntimeError: the runtime is dead: a request failed, and then one that should work.
            `in_flight` has the keys that were read and not answered.
    """
    windows: _Windows[K, Q, A] = _Windows(call, control)
    source = enumerate(requests)
    while items := list(islice(source, window)):
        part: list[tuple[K, Q]] = []
        for position, item in items:
            parsed = parse_item(item, position)
            if isinstance(parsed, RequestFailure):
                yield cast("K", None), parsed
            else:
                part.append(parsed)
        yield from windows.answer(part)


class _Windows(Generic[K, Q, A]):
    def __init__(self, call: Callable[[list[Q]], Sequence[A]], control: Q):
        self._call = call
        self._control = control

    def answer(self, window: list[tuple[K, Q]]) -> Iterator[tuple[K, A | RequestFailure]]:
        parts = [window] if window else []
        while parts:
            part = parts.pop()
            failures: dict[int, EvalutionError] = {}
            try:
                outputs = self._call([request for _, request in part])
            except (InvalidRequestError, UnsupportedRequestError) as error:
                failures = error.failures
                if not failures:
                    raise
                good = [pair for index, pair in enumerate(part) if index not in failures]
                parts += [good] if good else []
            except EngineRuntimeError as error:
                if len(part) > 1:
                    parts += _split(part, error)
                    continue
                if not self._is_alive():
                    _end(error, [key for left in (part, *reversed(parts)) for key, _ in left])
                failures = {0: error}
            else:
                self._check_count(outputs, part)
                self._control = part[-1][1]
                yield from zip((key for key, _ in part), outputs, strict=True)
            for index, failure in failures.items():
                key, request = part[index]
                yield key, RequestFailure(failure, read_metadata(request))

    def _is_alive(self) -> bool:
        try:
            self._call([self._control])
        except (EngineRuntimeError, InvalidRequestError, UnsupportedRequestError):
            return False
        return True

    def _check_count(self, outputs: Sequence[A], part: Sequence[object]) -> None:
        if not hasattr(outputs, "__len__"):
            name = getattr(self._call, "func", self._call).__name__
            raise EngineRuntimeError(f"{name}() must return a list of outputs, got {outputs!r:.60}")
        if len(outputs) != len(part):
            raise EngineRuntimeError(
                f"the session answered {len(outputs)} of {len(part)} requests and does not say "
                f"which"
            )


def _split(part: list[tuple[K, Q]], error: EngineRuntimeError) -> list[list[tuple[K, Q]]]:
    """Return smaller parts, the next one last: what `in_flight` names, then halves of the rest."""
    lost = set(error.in_flight)
    named = [pair for index, pair in enumerate(part) if index in lost]
    rest = [pair for index, pair in enumerate(part) if index not in lost]
    if not rest:
        named, rest = [], named
    half = (len(rest) + 1) // 2
    return [smaller for smaller in (rest[half:], rest[:half], named) if smaller]


def _end(error: EngineRuntimeError, lost: Sequence[Hashable]) -> NoReturn:
    raise EngineRuntimeError(
        f"{error}; a request that should work fails too ({len(lost)} in flight)", in_flight=lost
    ) from error.__cause__ or error
