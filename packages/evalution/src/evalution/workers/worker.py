"""A session in another process, as the scheduler sees it, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evalution.workers.wire import Message


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker came to its end: a sentence's predicate, and its stack where it left one."""

    reason: str
    stack: str | None = None


class Listener(Protocol):
    """Hears of one worker, on the worker's own thread."""

    def received(self, messages: Sequence[Message]) -> None:
        """Any sign of life; often with messages."""
        ...

    def ended(self, ending: Ending) -> None:
        """The last that is heard: the worker and all it had started are gone."""
        ...


class Worker(Protocol):
    """Starts at once and begins to build; then does what it is told by messages.

    The scheduler asks nothing else of a worker, so that one in a local process and one on another
    machine are supervised alike.
    """

    def start(self, listener: Listener) -> None: ...

    def send(self, *messages: Message) -> None:
        """Send without waiting; messages to a worker that has ended are lost."""
        ...

    def kill(self, reason: str, *, with_stack: bool) -> None:
        """End the worker and all it has started; `ended` tells the reason."""
        ...
