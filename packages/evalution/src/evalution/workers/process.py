"""A worker as a process on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evalution.workers.placement import Place
from evalution.workers.process_tree import MARK, kill_tree, nested
from evalution.workers.stack import ask_for_stack, read_stack
from evalution.workers.wire import Channel, Message, Outbox, Start
from evalution.workers.worker import Ending, Listener

# -P and this path keep a stray module of the current folder from being imported first.
_BOOT = """
import sys
sys.path[:] = {path}
from evalution.workers.child import main
main()
"""
_EXIT_S = 10.0
_SILENT = "Timeout ("
"""What a dump begins with that the worker's own watch has made."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What every worker of a session is started with."""

    engine: bytes
    model: bytes
    main: dict[str, Any]
    beat: float
    silence: float | None


class WorkerProcess:
    """A fresh interpreter that builds the session and serves it; see `evalution.workers.child`.

    It inherits the environment, credentials in it included: the engine may need them.
    """

    def __init__(self, blueprint: Blueprint, place: Place):
        self._blueprint = blueprint
        self._place = place
        self._mark = uuid.uuid4().hex
        self._folder = tempfile.TemporaryDirectory(prefix="evalution-worker-")
        self._stack_file = Path(self._folder.name) / "stack.txt"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: Outbox | None = None
        self._verdict: str | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, listener: Listener) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT.format(path=json.dumps(path))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._place.environment, MARK: nested(self._mark)},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        channel = Channel(cast(Any, process.stdout), cast(Any, process.stdin))
        self._outbox = Outbox(channel, f"evalution worker {process.pid} sender")
        plan = self._blueprint
        self._outbox.put(
            Start(
                engine=plan.engine,
                model=plan.model,
                main=plan.main,
                stack_file=str(self._stack_file),
                cores=self._place.cores,
                beat=plan.beat,
                silence=plan.silence,
                mark=self._mark,
                parent=os.getpid(),
            )
        )
        for target, arguments in ((self._listen, (channel, listener)), (self._reap, (process,))):
            threading.Thread(
                target=target, args=arguments, name=f"evalution worker {process.pid}", daemon=True
            ).start()

    def send(self, *messages: Message) -> None:
        assert self._outbox is not None
        self._outbox.put(*messages)

    def kill(self, reason: str, *, with_stack: bool) -> None:
        process = self._process
        assert process is not None
        with self._lock:
            if self._verdict is not None or process.returncode is not None:
                return
            self._verdict = reason
        if with_stack:
            ask_for_stack(process.pid, self._stack_file)
        kill_tree(process.pid, self._mark)

    def _listen(self, channel: Channel, listener: Listener) -> None:
        try:
            while True:
                try:
                    messages = channel.receive()
                except (EOFError, OSError, ValueError):
                    break
                listener.received(messages)
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must learn of it
            self.kill(f"was killed, since {type(error).__name__}: {error}", with_stack=False)
        listener.ended(self._ending())

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        # A process that it forked holds its end of the pipe open, which hides that it is gone.
        kill_tree(process.pid, self._mark)

    def _ending(self) -> Ending:
        process = self._process
        assert process is not None
        # With its pipe closed it is on its way out, or stuck there.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_S)
        kill_tree(process.pid, self._mark)
        code = process.wait()
        assert self._outbox is not None
        self._outbox.close()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what it holds can't be written any more
                if stream is not None:
                    stream.close()
        stack = read_stack(self._stack_file)
        self._folder.cleanup()
        return Ending(self._verdict or _described(code, stack, self._blueprint.silence), stack)


def _described(code: int, stack: str | None, silence: float | None) -> str:
    if stack is not None and stack.startswith(_SILENT):
        return (
            f"was silent for {silence:g} s and was ended: a native call holds Python's lock, "
            "or all its time"
        )
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"
