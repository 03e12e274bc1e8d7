"""The actor on a node: builds the session once, and serves it over a channel to its driver."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple, cast

from evalution.workers import (
    BuildFailed,
    Close,
    Closed,
    Message,
    Outbox,
    Service,
    build_session,
    describe_environment,
    pack_error,
    pack_messages,
    unpack_messages,
)
from evalution_core import EngineUnavailableError
from evalution_ray.upstream import Notes, Ray

_OWN = ("evalution-ray", "ray")
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


class Plan(NamedTuple):
    """The pickled engine and model of every actor of a session, and seconds between heartbeats."""

    engine: bytes
    model: bytes
    beat: float


class SessionActor:
    """Builds on the main thread, where a runtime may install signal handlers.

    Args:
        plan: a list of one reference to a `Plan`. It holds credentials, and an object goes from
            process to process; an argument would be kept with the cluster's records.
        note: the key under which the actor notes that it runs.
    """

    def __init__(self, plan: list[object], note: bytes):
        ray = cast(Ray, import_module("ray"))
        notes = cast(Notes, import_module("ray.experimental.internal_kv"))
        notes._internal_kv_put(note, b"")  # pyright: ignore[reportPrivateUsage]
        what: Plan = ray.get(plan[0])
        self._channel = ActorChannel()
        self._outbox = Outbox(self._channel, "evalution actor sender")
        self._beat = what.beat
        self._service: Service | None = None
        try:
            session = build_session(what.engine, what.model)
            # The driver may have another version of the runtime, or none.
            environment = describe_environment(what.engine)
            environment.versions.update({name: version(name) for name in _OWN})
        except ImportError as error:
            failure = EngineUnavailableError(
                f"a node of the cluster can't import what the engine needs: {error}; install it "
                "on every node, or name it in the option 'runtime_env'"
            )
            failure.__cause__ = error
            self._outbox.put(BuildFailed(pack_error(failure, "building the session")))
            return
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            self._outbox.put(BuildFailed(pack_error(error, "building the session")))
            return
        self._service = Service(session, self._outbox)
        self._outbox.put(self._service.describe()._replace(environment=environment))
        threading.Thread(
            target=self._send_heartbeats, name="evalution actor life", daemon=True
        ).start()

    def exchange(self, number: int, messages: bytes) -> bytes:
        """Take messages, and wait for some to give; calls are numbered by the driver from 0.

        A call that is followed by another one returns at once, so two calls at a time are
        enough: one that waits here, and one that brings messages.
        """
        with self._channel.turn(number):
            for message in unpack_messages(messages):
                assert self._service is not None
                if isinstance(message, Close):
                    threading.Thread(target=self._close, name="evalution actor close").start()
                else:
                    self._service.handle(message)
        return pack_messages(self._channel.next_batch(number))

    def stacks(self) -> str:
        """Return the stacks of this process's threads, as `faulthandler` writes them."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            return file.read()

    def _close(self) -> None:
        assert self._service is not None
        self._outbox.put(Closed(self._service.close()))

    def _send_heartbeats(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._beat):
            self._outbox.beat()
