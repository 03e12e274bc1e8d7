"""Runs generated programs, each in a locked process of its own (docs/decisions/0023)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Literal

from evalution.scoring.container import DEFAULT_IMAGE, FOLDER, READABLE, Container, check_image
from evalution_core import ConfigurationError

START_LIMIT_S = 10.0
"""Wall seconds that a process may take to start and to lock itself, on top of a program's own."""
_MOST_REPORT = 8192
_SIGNALLED = 128
"""A container whose program a signal ended has this exit status plus the signal's number."""
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")


Execution = Literal["sandbox", "partial", "docker", "podman"]
"""Permission to run code: in a locked process or not at all, with the locks that there are, or in a
container."""
_CONTAINED: tuple[Execution, ...] = ("docker", "podman")


PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Limits:
    """Wall seconds and bytes of memory that one program may take; the image of its container."""

    time_s: float
    memory_bytes: int
    image: str = DEFAULT_IMAGE


def check_execution(execution: Execution | None, image: str = DEFAULT_IMAGE) -> tuple[str, ...]:
    """Return what stays unlocked for programs that may be run this way.

    Raises:
        ConfigurationError: it isn't permitted, or not all locks are here; says what to write.
    """
    if execution is None:
        raise ConfigurationError(
            "the answers are programs, and scoring runs them on this machine; write execute: "
            "sandbox to allow that in a locked process"
        )
    if execution in _CONTAINED:
        _try_container(execution, image)
        return ()
    if os.name != "posix":
        raise ConfigurationError("programs are run on Linux and macOS alone: they can't be locked")
    missing = find_missing_locks()
    if missing and execution == "sandbox":
        raise ConfigurationError(
            f"this system can't lock {', nor '.join(missing)}; write execute: partial to run the "
            "programs without, for instance within a container of your own"
        )
    return missing


@cache
def find_missing_locks() -> tuple[str, ...]:
    """Return what a locked process can still reach here; tried once, on an empty program."""
    report, status = _run("", Limits(START_LIMIT_S, 4 << 30), "partial")
    if "missing" not in report:
        raise ConfigurationError(f"a locked process doesn't start here (exit status {status})")
    return tuple(report["missing"])


@cache
def _try_container(execution: Execution, image: str) -> None:
    """Run an empty program in a container, once."""
    check_image(execution, image)
    report, status = _run("", Limits(START_LIMIT_S, 1 << 30, image), execution)
    if not report.get("ended"):
        raise ConfigurationError(
            f"{execution} runs no Python in a container of {image} (exit status {status}); name "
            "another container_image, such as python:3.12-slim"
        )


def run_program(source: str, limits: Limits, execution: Execution) -> str:
    """Run a Python program in an empty folder; return `passed`, or what was wrong.

    It passes if it ends without an exception.

    Its input is empty and its output dropped. The process, and whatever it started, is killed
    before this returns.
    """
    report, status = _run(source, limits, execution)
    if report.get("ended"):
        return report.get("error") or PASSED
    if report.get("missing"):
        return "not run: a lock is missing"
    if -status in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL):
        return f"killed: takes longer than {limits.time_s:g} s"
    return f"ended before its tests did, with exit status {status}"


def _run(source: str, limits: Limits, execution: Execution) -> tuple[dict[str, Any], int]:
    """Return the report of the locked process, empty where there is none, and its exit status."""
    is_contained = execution in _CONTAINED
    container = Container(execution, limits.image, limits.memory_bytes) if is_contained else None
    with (
        TemporaryDirectory(prefix="evalution-", ignore_cleanup_errors=True) as folder,
        TemporaryFile() as job,
        TemporaryFile() as report,
    ):
        asked = {
            "source": source,
            "folder": folder if container is None else FOLDER,
            "readable": _list_readable() if container is None else READABLE,
            "time_limit_s": limits.time_s,
            "memory_bytes": limits.memory_bytes,
            "needs_all_locks": execution == "sandbox",
        }
        job.write(json.dumps(asked).encode())
        job.seek(0)
        process = subprocess.Popen(
            _make_local_command() if container is None else container.make_command(),
            stdin=job,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            # The client of containers finds its daemon by the environment, which stays outside.
            env={"HOME": folder, "TMPDIR": folder} if container is None else None,
            start_new_session=True,
        )
        try:
            status = process.wait(limits.time_s + START_LIMIT_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
            if container is not None:
                container.kill()
        finally:
            _kill_group(process)
        report.seek(0)
        is_signal = container is not None and status > _SIGNALLED
        return _parse_report(
            report.read(_MOST_REPORT)
        ), _SIGNALLED - status if is_signal else status


def _make_local_command() -> list[str]:
    return [sys.executable, "-I", "-B", str(Path(__file__).with_name("locked_process.py"))]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _parse_report(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line or b"{}")
    except ValueError:  # the program wrote to it
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _list_readable() -> list[str]:
    own = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
    return sorted({*map(os.path.realpath, own), *_SYSTEM} - {"/"})
