"""Runs Python programs, a job a line, each in a fork of this process, whose imports it has.

A job is a JSON object: `arguments` of an interpreter (`-c CODE`, `-m MODULE` or a file, then the
program's own), `folder`, `environment`, and `output` and `errors`, the files that take what it
prints. The answer is a line with its exit status. As in an interpreter of its own, a program finds
`sys.argv`, `sys.path[0]` and `__main__` of its own, and standard input is empty. It ends as one
there does, but leaves its memory to the system: to clear it means to copy what the forks share,
which takes longer than many a command.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import sys
import threading
import traceback
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from evalution.environment import read_software_versions

# What most programs import, often late; none of it starts a thread, which a fork wouldn't have.
IMPORTED = (
    "asyncio",
    "evalution.cli.comparison",
    "evalution.cli.inline_spec",
    "evalution.cli.listings",
    "evalution.cli.parity",
    "evalution.cli.run",
    "evalution.cli.show",
    "evalution.cli.specs",
    "evalution.replicas",
    "evalution.report",
    "evalution.suites.tasks.gsm8k",
    "evalution.suites.tasks.hellaswag",
    "evalution.suites.tasks.piqa",
    "evalution_conformance",
    "evalution_enginekit.mock",
    "evalution_reference.engine",
    "numpy",
    "rich.progress",
    "tokenizers",
)


def take_surroundings(job: dict[str, Any]) -> None:
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    files = [os.open(os.devnull, os.O_RDONLY)]
    files += [os.open(job[name], os.O_WRONLY | os.O_CREAT) for name in ("output", "errors")]
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)


def run(first: str, *others: str) -> None:
    """Run a program in this process, which has its surroundings."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *others[1:]], ""
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv, sys.path[0] = list(others), os.getcwd()
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *others], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def run_to_its_end(arguments: list[str]) -> NoReturn:
    """Run a program, then end this process with its exit status, as an interpreter does."""
    status = 0
    try:
        run(*arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and end.code is not status:
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - shown as an interpreter shows it
        status = 1
        traceback.print_exc()
    # It waits for threads that are no daemons.
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve() -> None:
    for name in IMPORTED:
        import_module(name)
    # Each run records them; a script's folder is on the path, as below.
    sys.path[0] = os.path.dirname(sys.executable)
    read_software_versions("evalution-reference")
    gc.freeze()  # a collection in a fork would copy all that
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            job = json.loads(line)
            take_surroundings(job)
            run_to_its_end(job["arguments"])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
