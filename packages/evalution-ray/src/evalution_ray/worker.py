"""An actor as a worker of the runner's scheduler, and the thread that calls Ray for all of them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalution.workers import (
    BuildFailed,
    Closed,
    Message,
    Ready,
    WorkerExit,
    WorkerListener,
    pack_error,
    pack_messages,
    unpack_messages,
)
from evalution_core import EngineUnavailableError, EvalutionError
from evalution_ray.exit_reason import describe_exit, find_build_failure
from evalution_ray.upstream import Actor, Notes, Ray

_WINDOW = 2
"""Calls at a time to an actor: one waits there for answers, one brings work."""
_GATHER_S = 0.005
"""Seconds for which messages are gathered: a call costs the driver as much as many messages, and
the actor has work meanwhile."""
_STACK_S = 10.0
_GONE_S = 10.0
"""Until an actor that was killed is taken for gone, even if the cluster doesn't confirm it."""


class Dispatcher:
    """Runs calls one after the other, some after a while, on one thread for any number of actors.

    So Ray's calls, which may take a moment, are never made under the scheduler's lock, and a
    thousand actors need no thousand threads.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="evalution ray", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Run it soon; it is dropped once the dispatcher is closed."""
        with self._lock:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """To be called on the dispatcher's own thread."""
        self._loop.call_later(seconds, call)

    def close(self) -> None:
        """Run no more calls, and wait for the one at hand. Idempotent."""
        self.put(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        with self._lock:
            self._loop.close()


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as all workers of a session share it."""

    ray: Ray
    notes: Notes
    dispatcher: Dispatcher
    create: Callable[[bytes], Actor]
    """Make an actor, which leaves a note under this key once it runs."""
    start_timeout: float
    no_room: Callable[[], str]
    """Return the reason why an actor has not been started, as a clause."""


class ActorWorker:
    """Talks to one actor by numbered calls, which are handled in their order.

    All but `send` and the entry of each method happens on the dispatcher's thread.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._note = f"evalution-ray/{uuid.uuid4().hex}".encode()
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._calls: deque[Future[Any]] = deque()
        self._number = 0
        self._listener: WorkerListener | None = None
        self._actor: Actor | None = None
        self._is_flush_due = False
        self._kill_reason: str | None = None
        self._stack: str | None = None
        self._is_ready = False
        self._has_ended = False

    def start(self, listener: WorkerListener) -> None:
        self._listener = listener
        self._put(self._begin)

    def send(self, *messages: Message) -> None:
        with self._lock:
            is_due = not self._waiting
            self._waiting.extend(messages)
        if is_due:
            self._put(self._flush_soon)

    def kill(self, reason: str, *, with_stack: bool) -> None:
        self._put(lambda: self._end_actor(reason, with_stack=with_stack))

    def _put(self, call: Callable[[], None]) -> None:
        self._cluster.dispatcher.put(partial(self._run, call))

    # on the dispatcher's thread

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must learn of it
            self._lose(error)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._cluster.dispatcher.after(seconds, partial(self._run, call))

    def _begin(self) -> None:
        if self._kill_reason is not None:
            self._end(self._kill_reason)
            return
        self._actor = self._cluster.create(self._note)
        self._call(())
        self._after(self._cluster.start_timeout, self._look_for_actor)

    def _look_for_actor(self) -> None:
        if self._is_ready or self._has_ended:
            return
        if self._cluster.notes._internal_kv_exists(self._note):  # pyright: ignore[reportPrivateUsage]
            return  # it loads its model
        limit = self._cluster.start_timeout
        text = f"an actor was not started within {limit:g} s: {self._cluster.no_room()}"
        self._report_build_failure(EngineUnavailableError(text))
        self._end_actor(f"was not started within {limit:g} s", with_stack=False)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._after(_GATHER_S, self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._has_ended or self._actor is None or len(self._calls) >= _WINDOW:
            return
        with self._lock:
            messages, self._waiting = self._waiting, []
        if messages or not self._calls:
            self._call(messages)

    def _call(self, messages: Sequence[Message]) -> None:
        assert self._actor is not None
        call = self._actor.exchange.remote(self._number, pack_messages(messages)).future()
        self._number += 1
        self._calls.append(call)
        call.add_done_callback(lambda _: self._put(self._hear))

    def _hear(self) -> None:
        while self._calls and self._calls[0].done() and not self._has_ended:
            call = self._calls.popleft()
            if (error := call.exception()) is not None:
                self._lose(error)
                return
            self._receive(unpack_messages(call.result()))
        self._flush_soon()

    def _receive(self, messages: Sequence[Message]) -> None:
        assert self._listener is not None
        self._listener.received(messages)
        for message in messages:
            if isinstance(message, Ready):
                self._is_ready = True
            elif isinstance(message, BuildFailed):
                self._end_actor("could not load the model", with_stack=False)
            elif isinstance(message, Closed):
                self._end_actor("was closed", with_stack=False)

    def _end_actor(self, reason: str, *, with_stack: bool) -> None:
        if self._kill_reason is not None or self._has_ended:
            return
        self._kill_reason = reason
        if self._actor is None:
            return
        if with_stack and self._is_ready:
            stacks = self._actor.stacks.remote().future()
            stacks.add_done_callback(lambda _: self._put(partial(self._kill, stacks)))
            self._after(_STACK_S, self._kill)
        else:
            self._kill()

    def _kill(self, stacks: Future[str] | None = None) -> None:
        if self._has_ended:
            return
        if stacks is not None and stacks.exception() is None:
            self._stack = stacks.result() or None
        self._cluster.ray.kill(self._actor)
        self._after(_GONE_S, lambda: self._end("was killed"))

    def _lose(self, error: BaseException) -> None:
        if self._has_ended:
            return
        try:
            if not self._is_ready and (failure := find_build_failure(error, self._cluster.ray)):
                self._report_build_failure(failure)
            if self._actor is not None:
                self._cluster.ray.kill(self._actor)  # it may live, where only the way to it is lost
        finally:
            self._end(describe_exit(error, self._cluster.ray))

    def _report_build_failure(self, failure: EvalutionError) -> None:
        assert self._listener is not None
        self._listener.received([BuildFailed(pack_error(failure, "starting an actor"))])

    def _end(self, reason: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._actor = None
        try:
            self._cluster.notes._internal_kv_del(self._note)  # pyright: ignore[reportPrivateUsage]
        finally:
            assert self._listener is not None
            self._listener.ended(WorkerExit(self._kill_reason or reason, self._stack))
