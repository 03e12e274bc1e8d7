"""Stacks of an actor's threads, as text of the form that `faulthandler` writes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from traceback import extract_stack

_OWN = Path(__file__).parent


def thread_stacks() -> str:
    """Innermost frames first, of all threads but the asking one, Ray's and those of the line."""
    return "\n\n".join(
        f"Thread 0x{ident:016x} (most recent call first):\n" + "\n".join(lines)
        for ident, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]
        if ident != threading.get_ident() and (lines := _lines(frame))
    )


def _lines(frame: object) -> list[str]:
    frames = list(reversed(extract_stack(frame)))  # pyright: ignore[reportArgumentType]
    waiting = [Path(found.filename) for found in frames]
    first = next((path for path in waiting if path.name not in ("threading.py", "queue.py")), None)
    if first is None or first.parent == _OWN or "ray" in first.parts:
        return []
    return [f'  File "{f.filename}", line {f.lineno} in {f.name}' for f in frames]
