"""A worker as a process on this machine: its environment, its start, and its end with all it began.

A worker leads a process group, and has a mark in its environment, which its descendants inherit.
On Linux the mark also finds those that left the group, even if their parents are gone. Windows ends
the tree by a command of its own.
"""

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
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from evalution.workers.wire import Channel, Message, Outbox, Start, WorkerExit, WorkerListener

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
MARK = "EVALUTION_WORKER"

PACKAGES = ("evalution-runner", "evalution-core")
"""Distributions that both ends must have in the same version: they pickle for each other."""

# -P and this path keep a stray module of the current folder from being imported first.
_BOOT = """
import sys
sys.path[:] = {path}
{main}
"""
_MAIN = "from evalution.workers.child import main; main()"
_OF_PARENT = ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")
"""Variables that lead an interpreter of another environment into that of its parent."""
_PROCESSES = Path("/proc")
_ROUNDS = 5
_EXIT_S = 10.0
_STACK_S = 1.0
"""Time for a hung worker to dump its stack."""
_LONGEST_STACK = 20_000


def read_versions() -> list[str]:
    """Return the versions of `PACKAGES`."""
    return [version(name) for name in PACKAGES]


def make_foreign_environment() -> dict[str, str]:
    """Return this process's variables as an interpreter of another environment may have them."""
    return {name: value for name, value in os.environ.items() if name not in _OF_PARENT}


class WorkerProcess:
    """A fresh interpreter that builds the session and serves it; see `evalution.workers.child`.

    It inherits the environment, credentials in it included: the engine may need them. One of
    another `python` has nothing of this process's `sys.path`.
    """

    def __init__(self, first: Start, environment: dict[str, str], python: Path | None = None):
        self._python = python
        self._first = first
        self._environment = environment
        self._mark = uuid.uuid4().hex
        self._folder = tempfile.TemporaryDirectory(prefix="evalution-worker-")
        self._stack_file = Path(self._folder.name) / "stack.txt"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: Outbox | None = None
        self._kill_reason: str | None = None

    def start(self, listener: WorkerListener) -> None:
        inherited, python, code = os.environ, sys.executable, _MAIN
        if self._python is not None:
            inherited, python = make_foreign_environment(), str(self._python)
        else:
            path = [entry or os.getcwd() for entry in sys.path]
            code = _BOOT.format(path=json.dumps(path), main=_MAIN)
        process = subprocess.Popen(
            [python, "-P", "-c", code, *read_versions()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**inherited, **self._environment, MARK: make_nested_mark(self._mark)},
            start_new_session=True,
        )
        self._process = process
        channel = Channel(cast(Any, process.stdout), cast(Any, process.stdin))
        self._outbox = Outbox(channel, f"evalution worker {process.pid} sender")
        self._outbox.put(self._first._replace(stack_file=str(self._stack_file)))
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
            if self._kill_reason is not None or process.returncode is not None:
                return
            self._kill_reason = reason
        if with_stack and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(process.pid, signal.SIGUSR2)
                process.wait(_STACK_S)
        kill_tree(process.pid, self._mark)

    def _listen(self, channel: Channel, listener: WorkerListener) -> None:
        try:
            while True:
                try:
                    messages = channel.receive()
                except (EOFError, OSError, ValueError):
                    break
                listener.received(messages)
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must learn of it
            self.kill(f"was killed, since {type(error).__name__}: {error}", with_stack=False)
        listener.ended(self._await_exit())

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        # A process that it forked holds its end of the pipe open, which hides that it is gone.
        kill_tree(process.pid, self._mark)

    def _await_exit(self) -> WorkerExit:
        process = self._process
        assert process is not None
        # With its pipe closed it is about to exit, or hangs in its exit.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_S)
        kill_tree(process.pid, self._mark)
        code = process.wait()
        assert self._outbox is not None
        self._outbox.close()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # its buffer can't be written any more
                if stream is not None:
                    stream.close()
        stack = None
        if self._stack_file.exists():
            text = self._stack_file.read_text("utf-8", errors="replace")
            stack = text[-_LONGEST_STACK:].strip() or None
        self._folder.cleanup()
        return WorkerExit(self._kill_reason or _describe_exit(code), stack)


def make_environments(workers: int, devices: Sequence[str] | None) -> list[dict[str, str]]:
    """Return the variables to be set for each worker.

    With devices, worker i sees `devices[i]` alone. One worker has everything else as it is. For
    several, libraries are limited to a worker's share of the cores, unless this process's
    environment has a number already.
    """
    seen = [{} if devices is None else {VISIBLE_DEVICES: devices[n]} for n in range(workers)]
    if workers == 1:
        return seen
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    share = str(max(1, cores // workers))
    threads = {name: share for name in THREAD_COUNTS if name not in os.environ}
    return [{**threads, **device} for device in seen]


def kill_tree(pid: int, mark: str) -> None:
    """Kill the worker `pid`, its group, and on Linux all other processes with this mark."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(pid)], check=False, capture_output=True)
        return
    for _ in range(_ROUNDS):  # one that is starting another just now needs a second look
        found = find_marked(mark)
        for other in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(other, signal.SIGKILL)
        if not found:
            break
    # Last, since a worker without any other process ends itself by it. macOS refuses zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def make_nested_mark(mark: str) -> str:
    """Return a worker's mark: `mark`, below that of this process if it is a worker itself.

    So the end of a worker is that of its workers too, which lead groups of their own.
    """
    return "/".join([*filter(None, [os.environ.get(MARK)]), mark])


def find_marked(mark: str) -> list[int]:
    """Return living processes with this mark, other than this one; none without /proc."""
    return [
        pid
        for pid in (int(entry.name) for entry in _PROCESSES.glob("[0-9]*"))
        if pid != os.getpid() and mark.encode() in _read_marks(pid)
    ]


def _read_marks(pid: int) -> list[bytes]:
    try:
        # Of a zombie this is empty: it waits for its parent and does no harm.
        environment = (_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []
    first = f"{MARK}=".encode()
    found = (entry for entry in environment if entry.startswith(first))
    return next(found, first).removeprefix(first).split(b"/")


def _describe_exit(code: int) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"
