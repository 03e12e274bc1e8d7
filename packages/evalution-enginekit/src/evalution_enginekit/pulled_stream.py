"""The contract's iterators on a push stream: an iterable feeds it, and the results are pulled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, Generic, TypeVar

from evalution_core import RequestFailure
from evalution_enginekit.streams import ResultStream

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")
J = TypeVar("J")
T = TypeVar("T")


class PulledStream(Generator[tuple[K, T | RequestFailure], None, None], Generic[K, Q, J, T]):
    """The contract's iterator on a push stream: results, as a thread of its own feeds `requests`.

    Nothing is opened or read before the first result is asked for. An exception of the input
    iterator is raised here after the results of all it had given; closing this iterator aborts the
    stream. A producer that blocks for ever keeps its thread, a daemon.
    """

    def __init__(
        self,
        requests: Iterable[tuple[K, Q]],
        opening: Callable[[], ResultStream[K, J, T]],
        prepare: Callable[[Q], J | RequestFailure],
        name: str,
    ):
        self._opened: list[ResultStream[K, J, T]] = []
        # No method of this object, which would keep it alive: a stream that is dropped must end.
        self._results = _pulled(requests, opening, prepare, name, self._opened)

    def __next__(self) -> tuple[K, T | RequestFailure]:
        return next(self._results)

    def send(self, value: None) -> tuple[K, T | RequestFailure]:
        return self._results.send(value)

    def throw(self, *error: Any) -> tuple[K, T | RequestFailure]:
        return self._results.throw(*error)

    def close(self) -> None:
        self._results.close()

    def cancel(self, key: K) -> None:
        """Abort the request with that key, from any thread; nothing more comes of it.

        From when the input has given it; before that, and once it is over, this changes nothing.
        """
        for stream in self._opened:
            stream.cancel(key)


def _pulled(
    requests: Iterable[tuple[K, Q]],
    opening: Callable[[], ResultStream[K, J, T]],
    prepare: Callable[[Q], J | RequestFailure],
    name: str,
    opened: list[ResultStream[K, J, T]],
) -> Generator[tuple[K, T | RequestFailure]]:
    stream = opening()
    opened.append(stream)
    threading.Thread(
        target=_feed, args=(requests, stream, prepare), name=f"{name} input", daemon=True
    ).start()
    try:
        yield from stream.results()
    finally:
        stream.close()


def _feed(
    requests: Iterable[tuple[Any, Q]],
    stream: ResultStream[Any, J, Any],
    prepare: Callable[[Q], J | RequestFailure],
) -> None:
    try:
        source = iter(requests)
        while stream.wait_for_room():
            try:
                key, request = next(source)
            except StopIteration:
                stream.finish_input()
                return
            stream.expect(key)
            job = prepare(request)
            if isinstance(job, RequestFailure):
                stream.reject(key, job)
            else:
                stream.submit(key, job)
    except BaseException as error:  # noqa: BLE001 - it is raised again at the reading end
        stream.finish_input(error)
