"""The actor on a node: builds the session once, and serves it to its driver."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from importlib import import_module
from typing import NamedTuple, cast

from evalution.workers import (
    BuildFailed,
    Close,
    Closed,
    Outbox,
    Service,
    build_session,
    pack_error,
    pack_messages,
    unpack_messages,
)
from evalution_core import EngineUnavailableError
from evalution_ray.channel import ActorChannel
from evalution_ray.upstream import Notes, Ray


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
        self._outbox.put(self._service.describe())
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
