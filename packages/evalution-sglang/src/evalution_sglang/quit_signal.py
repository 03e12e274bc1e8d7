"""SGLang's processes tell of their failure by a signal that ends this process; here it doesn't."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_pipes: list[tuple[int, int]] = []
"""Of each `quit_told`, the end that is read and the end that is written."""


@contextmanager
def quit_told() -> Generator[int]:
    """Inside, SIGQUIT has no effect but that the file descriptor given can be read.

    Where several are inside, the last of them is told, which may not be the one that it is meant
    for: see `is_alone`. Python lets only the main thread set handlers, and only there upstream sets
    its own, which ends the whole process tree. What `faulthandler` installs, any thread may; its
    dump is what can be read.
    """
    pipe = os.pipe()
    for end in pipe:
        os.set_blocking(end, False)
    with _lock:
        _pipes.append(pipe)
        _install()
    try:
        yield pipe[0]
    finally:
        with _lock:
            _pipes.remove(pipe)
            _install()
        for end in pipe:
            os.close(end)


def is_alone() -> bool:
    """Whether there is one `quit_told` in this process, so that each signal is meant for it."""
    return len(_pipes) == 1


def _install() -> None:
    if _pipes:
        faulthandler.register(signal.SIGQUIT, file=_pipes[-1][1], all_threads=False)
    else:
        faulthandler.unregister(signal.SIGQUIT)
