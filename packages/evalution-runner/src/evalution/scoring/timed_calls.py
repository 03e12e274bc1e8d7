"""Calls in a process of their own that is killed when one takes too long.

For libraries that can't be stopped, such as a simplifier of formulas. The process runs a module
whose `main` is `answer_calls`: it reads a JSON list of arguments a line and prints one of answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from weakref import finalize

_READY = "ready"
_START_S = 120.0
"""Wall seconds that the imports of the module may take."""


class TimedCalls:
    """A module's function, called in a process that is started by the first call.

    Args:
        module: its name; run as `python -m`, it calls `answer_calls`.
        time_limit_s: wall seconds of one call; a call that takes longer has the answer None.
    """

    def __init__(self, module: str, time_limit_s: float):
        self._module = module
        self._time_limit_s = time_limit_s
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str] = SimpleQueue()

    def call(self, *arguments: Any) -> Any:
        """Return the function's answer, None where it took too long or its process died.

        Raises:
            RuntimeError: the process doesn't start.
        """
        with self._lock:
            process, self._process = self._process or self._start(), None
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(arguments) + "\n")
                process.stdin.flush()
                answer = self._answers.get(timeout=self._time_limit_s)
            except (Empty, OSError):
                answer = ""
            except BaseException:
                _kill(process)  # its answer would be that of the next call
                raise
            if not answer:
                _kill(process)
                return None
            self._process = process
            return json.loads(answer)

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            # -P: a file of the working folder must not take the place of a module.
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the parent: this one's answers are scores
        )
        finalize(self, _kill, process)
        # Each process has a queue of its own: a killed one's end is no answer of the next.
        self._answers = SimpleQueue()
        Thread(target=_forward, args=(process, self._answers), daemon=True).start()
        try:
            started = self._answers.get(timeout=_START_S) == f"{_READY}\n"
        except Empty:
            started = False
        except BaseException:
            _kill(process)
            raise
        if not started:
            _kill(process)
            raise RuntimeError(f"python -m {self._module} doesn't start")
        return process


def answer_calls(function: Callable[..., Any]) -> None:
    """Answer the calls of `TimedCalls` until its end of the pipe is closed.

    What the function prints, and what is printed below it, doesn't reach the answers.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(_READY, file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(function(*json.loads(line))), file=answers, flush=True)


def _forward(process: subprocess.Popen[str], answers: SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            answers.put(line)
    answers.put("")


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):  # a line that it didn't read
        process.stdin.close()
