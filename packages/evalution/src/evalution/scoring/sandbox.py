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

from evalution_core import ConfigurationError

START_LIMIT_S = 10.0
"""Wall seconds that a process may take to start and to lock itself, on top of a program's own."""
_MOST_REPORT = 4096
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")


Execution = Literal["sandbox", "partial"]
"""Permission to run code: in a locked process or not at all, or with the locks that there are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Wall seconds and bytes of memory that one program may take."""

    time_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a program: passed if it ended without an exception, else what was wrong."""

    is_passed: bool
    detail: str


def check_execution(execution: Execution | None) -> tuple[str, ...]:
    """Return what stays unlocked for programs that may be run this way.

    Raises:
        ConfigurationError: it isn't permitted, or not all locks are here; says what to write.
    """
    if execution is None:
        raise ConfigurationError(
            "the answers are programs, and scoring runs them on this machine; write execute: "
            "sandbox to allow that in a locked process"
        )
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
    report, status = _run("", Limits(START_LIMIT_S, 4 << 30), needs_all_locks=False)
    if "missing" not in report:
        raise ConfigurationError(f"a locked process doesn't start here (exit status {status})")
    return tuple(report["missing"])


def run_program(source: str, limits: Limits, execution: Execution) -> Verdict:
    """Run a Python program in an empty folder; it passes if it ends without an exception.

    Its input is empty and its output dropped. The process, and whatever it started, is killed
    before this returns.
    """
    needs_all = execution == "sandbox"
    report, status = _run(source, limits, needs_all_locks=needs_all)
    if report.get("ended"):
        error = report.get("error")
        return Verdict(error is None, error or "passed")
    if report.get("missing"):
        return Verdict(False, "not run: a lock is missing")
    if -status in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL):
        return Verdict(False, f"killed: takes longer than {limits.time_s:g} s")
    return Verdict(False, f"ended before its tests did, with exit status {status}")


def _run(source: str, limits: Limits, *, needs_all_locks: bool) -> tuple[dict[str, Any], int]:
    """Return the report of the locked process, empty where there is none, and its exit status."""
    with (
        TemporaryDirectory(prefix="evalution-", ignore_cleanup_errors=True) as folder,
        TemporaryFile() as job,
        TemporaryFile() as report,
    ):
        asked = {
            "source": source,
            "folder": folder,
            "readable": _list_readable(),
            "time_limit_s": limits.time_s,
            "memory_bytes": limits.memory_bytes,
            "needs_all_locks": needs_all_locks,
        }
        job.write(json.dumps(asked).encode())
        job.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(Path(__file__).with_name("locked_process.py"))],
            stdin=job,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder},
            start_new_session=True,
        )
        try:
            status = process.wait(limits.time_s + START_LIMIT_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        finally:
            _kill_group(process)
        report.seek(0)
        return _parse_report(report.read(_MOST_REPORT)), status


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
