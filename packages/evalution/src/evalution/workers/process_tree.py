"""The processes that a worker has started, and the end of all of them.

A worker leads a process group, and has a mark in its environment, which its descendants inherit.
On Linux the mark finds those too that left the group, even if their parents are gone. Windows ends
the tree by a command of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
