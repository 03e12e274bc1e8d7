"""A stream into the session for the call of one client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from threading import Event
from typing import cast

from evalution_core import GenerationRequest, StreamEvent, TextDelta
from evalution_openai.server.mailbox import Mailbox

_POKE = -1

Keyed = Iterator[tuple[int, StreamEvent]]
Opening = Callable[[Iterable[tuple[int, GenerationRequest]]], Keyed]


class OwnCall:
    """One stream into the session, pulled on a thread and read on the event loop.

    Args:
        opening: begins a stream of the session.
        requests: what goes into it.
        stays_open: whether the session takes input that stays open, which lets the call be aborted
            before it has given anything.
        threads: where it is pulled.
        over: called on the event loop when the session has let go, however slowly events are read.
    """

    def __init__(
        self,
        opening: Opening,
        requests: Sequence[GenerationRequest],
        *,
        stays_open: bool,
        threads: Executor,
        over: Callable[[], None],
    ):
        self.events: Mailbox[tuple[int, StreamEvent] | None] = Mailbox()
        self._opening = opening
        self._requests = requests
        self._stays_open = stays_open
        self._loop = asyncio.get_running_loop()
        self._over = Event()
        self._aborted = False
        self._done = self._loop.run_in_executor(threads, self._run)
        self._done.add_done_callback(lambda _: over())
        self._done.add_done_callback(lambda _: self.events.put(None))

    @property
    def error(self) -> BaseException | None:
        """What went wrong, once the events have ended."""
        return self._done.exception()

    async def leave(self) -> None:
        """Abort what runs, and wait until the session has let go."""
        self._aborted = True
        self._over.set()
        await asyncio.wait([self._done])

    def _run(self) -> None:
        left = len(self._requests)
        stream = cast("Generator[tuple[int, StreamEvent]]", self._opening(self._input()))
        try:
            with closing(stream):
                for key, event in stream:
                    if self._aborted:
                        return
                    self._loop.call_soon_threadsafe(self.events.put, (key, event))
                    left -= not isinstance(event, TextDelta)
                    if not left:
                        return
        finally:
            self._over.set()

    def _input(self) -> Iterator[tuple[int, GenerationRequest]]:
        """The requests; then, if the call is aborted, one that is refused.

        `_run` waits for the session's next result, and this is one that comes at once: an iterator
        can't be closed by another thread while it is at work.
        """
        yield from enumerate(self._requests)
        if self._stays_open:
            self._over.wait()
            if self._aborted:
                yield _POKE, GenerationRequest()
