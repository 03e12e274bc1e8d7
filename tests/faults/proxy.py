"""A proxy between a client and a server that breaks what passes, at a byte that a test names."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

REQUEST, ANSWER = "request", "answer"
Direction = Literal["request", "answer"]
Kind = Literal["close", "reset", "stall", "garbage"]
GARBAGE = 0xFF
"""No part of any text in UTF-8, and of no number."""


@dataclass(frozen=True)
class Fault:
    """Breaks before byte `at` of that direction; `garbage` takes the place of the byte."""

    kind: Kind
    direction: Direction
    at: int


@dataclass
class Proxy:
    """Passes bytes on, and breaks what the armed fault says; `passed` counts since `arm`."""

    target: int
    port: int = 0
    passed: dict[str, int] = field(default_factory=dict[str, int])
    stalled: threading.Event = field(default_factory=threading.Event)
    has_fired: bool = False
    _fault: Fault | None = None
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def arm(self, fault: Fault | None) -> None:
        self.passed, self.has_fired, self._fault = {REQUEST: 0, ANSWER: 0}, False, fault
        self.stalled.clear()
        self._released.clear()

    def release(self) -> None:
        """Let what is stalled go on."""
        self._loop.call_soon_threadsafe(self._released.set)

    @contextmanager
    def run(self) -> Iterator[Proxy]:
        thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        thread.start()
        starting = asyncio.start_server(self._connect, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port = server.sockets[0].getsockname()[1]
        self.arm(None)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(server), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target)
        writers = writer, onward_writer
        pumps = (
            self._pump(REQUEST, reader, onward_writer, writers),
            self._pump(ANSWER, onward_reader, writer, writers),
        )
        try:
            await asyncio.gather(*pumps)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                each.close()

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        while data := await reader.read(1 << 16):
            begin = self.passed[direction]
            self.passed[direction] += len(data)
            fault = self._fault
            if fault is None or fault.direction != direction or fault.at >= begin + len(data):
                writer.write(data)
                continue
            self._fault, self.has_fired = None, True
            before, after = data[: fault.at - begin], data[fault.at - begin :]
            writer.write(before)
            if fault.kind == "stall":
                self.stalled.set()
                await self._released.wait()
                writer.write(after)
            elif fault.kind == "garbage":
                writer.write(bytes([GARBAGE]) + after[1:])
            else:
                _break(both, is_reset=fault.kind == "reset")
                return
        writer.close()


def _break(writers: tuple[asyncio.StreamWriter, ...], *, is_reset: bool) -> None:
    for writer in writers:
        if is_reset:
            plug: socket.socket = writer.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()
