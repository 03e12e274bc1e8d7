"""The actor's end of the channel to its driver, which calls, and is never called."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from evalution.workers import Message

_PAUSE_S = 0.01
"""Seconds between two batches: a call costs the driver as much as dozens of answers."""


class ActorChannel:
    """A channel that gives each batch to the waiting call; calls take turns by number."""

    def __init__(self, pause: float = _PAUSE_S):
        self._changed = threading.Condition()
        self._batch: Sequence[Message] | None = None
        self._turn = 0
        self._pause = pause
        self._never = threading.Event()

    def send(self, messages: Sequence[Message]) -> None:
        """Wait until a call has taken the batch, and a moment for more messages to gather."""
        with self._changed:
            self._batch = messages
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._batch is None)
        self._never.wait(self._pause)

    @contextmanager
    def turn(self, number: int) -> Generator[None]:
        """Wait for the turn of a call: messages are taken in order, though calls run in any."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn == number)
        yield
        with self._changed:
            self._turn = number + 1
            self._changed.notify_all()

    def next_batch(self, number: int) -> Sequence[Message]:
        """Wait for the next batch; nothing if another call has come meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch is not None or self._turn > number + 1)
            if self._turn > number + 1 or self._batch is None:
                return ()
            batch, self._batch = self._batch, None
            self._changed.notify_all()
            return batch
