"""Steps of a stage: programs with a time limit each, and the record of what they gave.

The record has a line of JSON for each attempt at a step. A step that passed isn't run again while
what it makes is there, so a stage that was cut off goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
Outcome = Literal["passed", "failed", "timed out", "unavailable"]
UNAVAILABLE = 78
"""Exit status of a step whose need this machine lacks: it says so in its last line of output."""
_LEAST_SECONDS = 15
_GRACE_SECONDS = 5
_TAIL = 30
_LOGGED = 200_000
"""Characters of a step's output that the log keeps, from its end."""


@dataclass(frozen=True)
class Step:
    """A program; `{result}` in its command is the JSON file or folder that it writes."""

    name: str
    command: Sequence[str | Path]
    seconds: int = 240
    result: str | None = None
    """A file below `{result}`, where that is a folder."""
    makes: Path | None = None
    variables: Mapping[str, str] | None = None


class Record:
    """All attempts at steps, in `records.jsonl`, and what they printed, in `records.log`.

    Args:
        folder: theirs.
        copies: gets both files after each attempt, for a machine that may be gone at any time.
    """

    def __init__(self, folder: Path, copies: Path | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self._log = folder / "records.jsonl", folder / "records.log"
        self._copies = copies
        self._lock = Lock()

    def read(self) -> list[dict[str, Any]]:
        """Return the attempts in their order; a line that was cut off counts as none."""
        found: list[dict[str, Any]] = []
        if self.file.is_file():
            for line in self.file.read_text("utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    found.append(json.loads(line))
        return found

    def is_done(self, stage: str, step: Step) -> bool:
        tried = [one for one in self.read() if (one["stage"], one["step"]) == (stage, step.name)]
        if not tried or tried[-1]["outcome"] not in ("passed", "unavailable"):
            return False
        return step.makes is None or step.makes.exists()

    def add(self, attempt: Mapping[str, Any], printed: str) -> None:
        with self._lock:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(printed)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(attempt) + "\n")
            if self._copies is not None:
                self._copies.mkdir(parents=True, exist_ok=True)
                for kept in (self.file, self._log):
                    shutil.copyfile(kept, self._copies / kept.name)


@dataclass(frozen=True)
class Runner:
    """Runs steps, none again that failed: their record, folder and environment.

    A patient one, for rehearsals on a busy machine, gives each step all the time there is.
    """

    record: Record
    work: Path
    variables: Mapping[str, str]
    is_patient: bool = False
    failed: list[str] = field(default_factory=list[str])

    def run(self, stage: str, steps: Sequence[Step], end: float, workers: int = 1) -> list[str]:
        """Run the steps that aren't done; return the names of those that are left.

        No step begins less than _LEAST_SECONDS before `end`, a time of the monotonic clock; one
        that reaches the end of its own time or that one is killed, with what it started.
        """
        left: list[str] = []

        def attempt(step: Step) -> None:
            name = f"{stage}/{step.name}"
            remaining = end - time.monotonic()
            if name in self.failed or self.record.is_done(stage, step):
                return
            if remaining < _LEAST_SECONDS:
                left.append(name)
                return
            own = remaining if self.is_patient else step.seconds
            outcome = self._attempt(stage, step, min(own, remaining))
            if outcome == "timed out" and remaining <= own:
                left.append(name)
            elif outcome in ("failed", "timed out"):
                self.failed.append(name)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(attempt, steps))
        return left

    def _attempt(self, stage: str, step: Step, seconds: float) -> Outcome:
        result = self.work / "steps" / stage / step.name.replace(" ", "-")
        result.parent.mkdir(parents=True, exist_ok=True)
        _remove(result)  # the runner's commands refuse a folder of an earlier attempt
        command = [str(part).replace("{result}", str(result)) for part in step.command]
        start = time.monotonic()
        status, printed = run_limited(
            command, {**self.variables, **(step.variables or {})}, seconds
        )
        spent = time.monotonic() - start
        outcomes: dict[int | None, Outcome] = {
            0: "passed",
            None: "timed out",
            UNAVAILABLE: "unavailable",
        }
        outcome = outcomes.get(status, "failed")
        lines = [line for line in printed.splitlines() if line.strip()]
        shown = lines[-_TAIL:] if outcome in ("failed", "timed out") else lines[-1:]
        found = {
            "stage": stage,
            "step": step.name,
            "outcome": outcome,
            "seconds": round(spent, 1),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "result": _read_result(result / step.result if step.result else result),
            "end": "\n".join(shown),
        }
        self.record.add(found, f"\n+ {' '.join(command)}\n{printed[-_LOGGED:]}")
        tail = "" if outcome == "passed" else f"\n{found['end']}"
        print(f"{stage}/{step.name}: {outcome}, {spent:.0f} s{tail}", flush=True)
        return outcome


def run_limited(
    command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[int | None, str]:
    """Return the exit status, None if the time was up, and all that was printed."""
    # A file and no pipe, which a process in a session of its own would hold open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
        printed.seek(0)
        return status, printed.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step as Ctrl-C does, so that it says what it has, and then whatever is left of it."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_result(file: Path) -> Any:
    """Return what a step wrote, None where it was cut off."""
    with contextlib.suppress(json.JSONDecodeError, FileNotFoundError):
        return json.loads(file.read_text("utf-8"))
    return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def stop_unavailable(reason: str) -> None:
    """End this process as a step whose need isn't there.

    Raises:
        SystemExit: always.
    """
    print(reason, flush=True)
    sys.exit(UNAVAILABLE)


Attempts = dict[tuple[str, str], dict[str, Any]]
"""The last attempt at each step, by the names of its stage and its own."""


def merge_attempts(records: Sequence[dict[str, Any]]) -> Attempts:
    """Return the last attempt at each step; a bench's rows stay until they are measured again."""
    found: Attempts = {}
    for one in records:
        key = one["stage"], one["step"]
        before, rows = found.get(key, {}).get("result"), one["result"]
        if isinstance(before, list):
            again = {row.get("shape") for row in rows or ()}
            rows = [*(row for row in before if row.get("shape") not in again), *(rows or ())]
        found[key] = {**one, "result": rows}
    return found
