"""Where workers run: a device each, or a share of the cores."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

from evalution.workers.wire import Channel, Ending, Listener, Message, Outbox, Start

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Variables set in a worker's environment, and the cores that it is bound to (None: all)."""

    environment: dict[str, str] = field(default_factory=dict[str, str])
    cores: tuple[int, ...] | None = None


def places(workers: int, devices: Sequence[str] | None) -> list[Place]:
    """A place for each worker.

    With devices, worker i sees `devices[i]` alone. One worker without devices has all. Several
    share the cores of this process in equal parts, each bound to its part where the system can do
    that; with devices they aren't bound. Libraries are told of as many threads as a part has cores,
    unless this process's environment says a number already.
    """
    if workers == 1:
        return [Place(_device(devices, 0))]
    cores = _cores()
    parts = [
        tuple(cores[i * len(cores) // workers : (i + 1) * len(cores) // workers])
        for i in range(workers)
    ]
    return [
        Place(
            {**_threads(len(part)), **_device(devices, index)},
            part if part and devices is None and hasattr(os, "sched_setaffinity") else None,
        )
        for index, part in enumerate(parts)
    ]


def _device(devices: Sequence[str] | None, index: int) -> dict[str, str]:
    return {} if devices is None else {VISIBLE_DEVICES: devices[index]}


def _threads(count: int) -> dict[str, str]:
    return {name: str(max(1, count)) for name in THREAD_COUNTS if name not in os.environ}


def _cores() -> list[int]:
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


MARK = "EVALUTION_WORKER"
_PROCESSES = Path("/proc")
_ROUNDS = 5


def kill_tree(pid: int, mark: str) -> None:
    """Kill the worker `pid`, its group, and on Linux all other processes with this mark."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(pid)], check=False, capture_output=True)
        return
    for _ in range(_ROUNDS):  # one that is starting another just now needs a second look
        found = marked(mark)
        for other in found:
            _kill(other)
        if not found:
            break
    _kill_group(pid)  # last, since a worker that is alone in the world ends itself by it


def nested(mark: str) -> str:
    """What a worker of this process gets as its mark: `mark`, and this one's own if it is a worker.

    So the end of a worker is that of its workers too, which lead groups of their own.
    """
    return "/".join([*filter(None, [os.environ.get(MARK)]), mark])


def marked(mark: str) -> list[int]:
    """Living processes with this mark, without the asking one; none where there is no /proc."""
    return [
        pid
        for pid in (int(entry.name) for entry in _PROCESSES.glob("[0-9]*"))
        if pid != os.getpid() and mark.encode() in _marks(pid)
    ]


def _marks(pid: int) -> list[bytes]:
    try:
        # Of a zombie this is empty: it waits for its parent and does no harm.
        environment = (_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []
    first = f"{MARK}=".encode()
    found = (entry for entry in environment if entry.startswith(first))
    return next(found, first).removeprefix(first).split(b"/")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS: a group of zombies
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


_WAIT_S = 2.0
_LOOK_S = 0.02
_LONGEST = 20_000
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_WAITS = ("threading.py", "queue.py")
"""Files whose frames on top only say that a thread waits; the next one says for what."""
_IDLE = ("wire.py", "child.py", "lanes.py", "streams.py", "runtime_thread.py")
"""Files of a worker and of the engine kit that wait where there is nothing to do."""
_FATAL, _CURRENT = "Fatal Python error", "Current thread"
"""What faulthandler writes of a crash, and of the thread that it dumps from."""

_dumps: list[TextIO] = []


class StackDumps:
    """In the worker: dumps on a crash, on a signal, and after a silence.

    The dump is made by native code that needs no lock of Python's.
    """

    def __init__(self, path: str):
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
        _dumps.append(self._file)
        self.listen()

    def listen(self) -> None:
        """Take the signals; again after a build, which may have taken them for itself."""
        faulthandler.enable(self._file)
        if sys.platform != "win32":
            faulthandler.register(signal.SIGUSR2, self._file)

    def expect_life(self, within: float) -> None:
        """End the process with a dump unless this is called again within so many seconds."""
        faulthandler.dump_traceback_later(within, exit=True, file=self._file)


def ask_for_stack(pid: int, path: Path) -> None:
    """Have the worker dump its stack, and wait for it; not on Windows, which has no such signal."""
    if sys.platform == "win32":
        return
    before = _size(path)
    try:
        os.kill(pid, signal.SIGUSR2)
    except ProcessLookupError:
        return
    end = time.monotonic() + _WAIT_S
    size = before
    while time.monotonic() < end:
        time.sleep(_LOOK_S)
        now = _size(path)
        if now > before and now == size:
            return
        size = now


def read_stack(path: Path) -> str | None:
    """What the worker dumped, if anything."""
    try:
        return path.read_text("utf-8", errors="replace")[-_LONGEST:].strip() or None
    except OSError:
        return None


def innermost(stack: str) -> str | None:
    """Where the first thread that isn't merely waiting stands: `function (file:line)`.

    Of a crash, only the thread that crashed counts: the others stood anywhere.
    """
    threads = re.split(r"\n\s*\n", stack)
    crashed = [thread for thread in threads if thread.startswith(_CURRENT)]
    for thread in (crashed or threads) if _FATAL in stack else threads:
        frames = [found for line in thread.splitlines() if (found := _FRAME.match(line))]
        telling = [found for found in frames if Path(found["file"]).name not in _WAITS]
        if telling and Path(telling[0]["file"]).name not in _IDLE:
            top = telling[0]
            return f"{top['function']} ({top['file']}:{top['line']})"
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
