"""What one task is told by others, in its order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue without an end and with one reader, all on one event loop.

    `asyncio.Queue` is for many readers, and a request makes one: its two waiting lists and its
    event cost more than what passes through.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> T:
        """The next item, as soon as there is one."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()
