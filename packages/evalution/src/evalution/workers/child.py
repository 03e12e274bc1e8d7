"""The worker process: builds a session from a pickled engine and serves it to its parent.

The child is a fresh interpreter, never a fork. Its pipe takes the place of standard input and
output; what the engine prints goes to standard error. It has a process group of its own and ignores
Ctrl-C, which its parent handles. When the pipe ends, for whatever reason, so does the process, with
all that it has started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import spawn

from evalution.workers.construction import constructed
from evalution.workers.lanes import Service
from evalution.workers.parcel import pack_error
from evalution.workers.process_tree import kill_tree
from evalution.workers.stack import StackDumps
from evalution.workers.wire import BuildFailed, Channel, Close, Closed, Outbox, Ready, Start
from evalution_core import BaseInferenceSession, Capability

_FLUSH_S = 10.0


def main() -> None:
    """Serve until the parent says `Close` or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _own_channel()
    (start,) = channel.receive()
    assert isinstance(start, Start)
    dumps = StackDumps(start.stack_file)
    if start.cores is not None and sys.platform == "linux":
        os.sched_setaffinity(0, start.cores)
    outbox = Outbox(channel, "evalution worker sender")
    try:
        try:
            session, declared = _build(start)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            outbox.put(BuildFailed(pack_error(error, "building the session")))
            outbox.flush(_FLUSH_S)
            return
        dumps.listen()
        threading.Thread(
            target=_live, args=(outbox, dumps, start), name="evalution worker life", daemon=True
        ).start()
        service = Service(session, declared, outbox)
        outbox.put(Ready(service.traits()))
        _serve(channel, service, outbox)
    except EOFError:
        # Nobody waits for an answer, and what runs may hold a device.
        kill_tree(os.getpid(), start.mark)


def _own_channel() -> Channel:
    """The pipe, taken away from whatever reads standard input or prints."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return Channel(incoming, outgoing)


def _build(start: Start) -> tuple[BaseInferenceSession, frozenset[Capability]]:
    if start.main:
        spawn.prepare(start.main)
    return constructed(start.engine, start.model)


def _live(outbox: Outbox, dumps: StackDumps, start: Start) -> None:
    """Beat: tell the parent, and put off the end that a process without a beat comes to.

    The process ends with its parent.
    """
    pause = threading.Event()
    while True:
        if sys.platform != "win32" and os.getppid() != start.parent:
            # The pipe may be held open by some other child of the parent's.
            kill_tree(os.getpid(), start.mark)
        outbox.beat()
        if start.silence is not None:
            dumps.expect_life(start.silence)
        pause.wait(start.beat)


def _serve(channel: Channel, service: Service, outbox: Outbox) -> None:
    while True:
        for message in channel.receive():
            if isinstance(message, Close):
                outbox.put(Closed(service.close()))
                outbox.flush(_FLUSH_S)
                return
            service.handle(message)
