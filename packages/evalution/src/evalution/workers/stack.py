"""Stack dumps of a worker: written by the worker, even while it hangs, and read by its parent."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

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
