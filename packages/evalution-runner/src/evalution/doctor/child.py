"""Questions on one plugin, answered by a child process, which may crash or hang.

A question comes as JSON on stdin. Every line of stdout is an object of facts that were found, and
the stage that begins then; whatever a runtime prints is sent to stderr, and so are the stacks of
all threads if the process dies. Only a process that lives to say that it is done can be trusted.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

from evalution_core.plugins import PluginEntry
from evalution_core.redaction import find_secrets, redact_text

Facts = dict[str, Any]

_DUMP = "Fatal Python error: "
"""The beginning of the stacks that a dying interpreter prints."""
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in ', re.MULTILINE)
_STDLIB = sysconfig.get_path("stdlib")
_SECONDS_TO_DIE = 5


def answer_parent(answer: Callable[[Mapping[str, Any]], Iterable[Facts]]) -> None:
    """Answer the question on stdin, and end this process."""
    answers = os.dup(1)
    os.dup2(2, 1)
    faulthandler.enable()
    question = json.load(sys.stdin)
    sys.path[:] = question.get("path", sys.path)
    with os.fdopen(answers, "w", encoding="utf-8") as stream:
        for facts in answer(question):
            print(json.dumps(facts), file=stream, flush=True)
    # A runtime's threads must not keep the process alive: all that was asked is answered.
    os._exit(0)


def ask_child(
    module: str, entry: PluginEntry[Any], question: Mapping[str, Any], patience: float
) -> Facts:
    """Return what a child with this process's `sys.path` found out, as `ask_process`.

    Args:
        module: calls `answer_parent` when it is run.
        entry: what the question is on; its four facts are added to the question.
        question: JSON.
        patience: seconds after which the child is ended.
    """
    facts = (entry.name, entry.value, entry.distribution, entry.version)
    # -P: a file of the working folder must not take the place of a module.
    command = [sys.executable, "-P", "-m", module]
    return ask_process(command, {**question, "path": sys.path, "entry": facts}, patience)


def ask_process(
    command: Sequence[str],
    question: Mapping[str, Any],
    patience: float,
    environment: Mapping[str, str] | None = None,
) -> Facts:
    """Return what a process found out, and as an `error` what became of it.

    The `stage` of one that did not live to say that it is done is not None.

    Raises:
        OSError: it can't be started.
    """
    # Files and no pipes: a grandchild that lives on would hold a pipe open.
    with TemporaryFile() as asked, TemporaryFile() as answered, TemporaryFile() as printed:
        asked.write(json.dumps(question).encode())
        asked.seek(0)
        child = subprocess.Popen(
            command,
            stdin=asked,
            stdout=answered,
            stderr=printed,
            env=environment,
            start_new_session=True,
        )
        fault = _await_child(child, patience)
        answered.seek(0)
        found: Facts = {"stage": "its start"}
        for line in answered:
            with suppress(ValueError, TypeError):  # a program that knows nothing of questions
                found |= json.loads(line)
        if found["stage"] is not None:
            doing = f"{fault or 'it ended the process'} during {found['stage']}"
            hidden = find_secrets({"question": question, "environment": dict(os.environ)})
            found["error"] = f"{doing}{_describe_end(printed, hidden)}"
    return found


def _await_child(child: subprocess.Popen[bytes], patience: float) -> str | None:
    """Return the fault of the child's end, if any; it and its children are gone then."""
    try:
        status = child.wait(patience)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)  # by which it prints its stacks
        with suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS_TO_DIE)
        return f"it was not done after {patience:g} s,"
    finally:
        _kill_group(child)
    if status < 0:
        return f"it crashed with {signal.Signals(-status).name}"
    return f"it ended the process with status {status}" if status else None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        child.kill()
    else:
        with suppress(ProcessLookupError):  # where all of them ended by themselves
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _describe_end(printed: IO[bytes], hidden: Collection[str]) -> str:
    """Return the last printed line, and the place in the code where the process ended."""
    printed.seek(0)
    text, _, stacks = printed.read().decode(errors="replace").partition(_DUMP)
    frames = [(file, line) for file, line in _FRAME.findall(stacks) if not _is_python_own(file)]
    place = f" ({frames[0][0]}, line {frames[0][1]})" if frames else ""
    lines = text.strip().splitlines()
    return (
        f"{place}; it printed last: {redact_text(lines[-1].strip(), hidden)[:200]}"
        if lines
        else place
    )


def _is_python_own(file: str) -> bool:
    is_installed = "site-packages" in file or "dist-packages" in file
    return file.startswith("<") or (file.startswith(_STDLIB) and not is_installed)
