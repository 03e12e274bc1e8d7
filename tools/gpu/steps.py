"""Steps of a stage: programs with a time limit each, and the record of what they gave.

A stage's record has a line of JSON for each attempt at a step. A step that passed isn't run again
while what it makes is there, so a stage that was cut off goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
Outcome = Literal["passed", "failed", "timed out", "unavailable"]
UNAVAILABLE = 78
"""Exit status of a step whose need this machine lacks: it says so in its last line of output."""
_LEAST_SECONDS = 15
_TAIL = 30


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
    """The attempts at a stage's steps, in `STAGE.jsonl`, and all that they printed."""

    def __init__(self, folder: Path, stage: str):
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self.log = folder / f"{stage}.jsonl", folder / f"{stage}.log"
        self.stage = stage

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the last attempt at each step; a line that was cut off counts as none."""
        found: dict[str, dict[str, Any]] = {}
        if self._file.is_file():
            for line in self._file.read_text("utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    attempt = json.loads(line)
                    found[attempt["step"]] = attempt
        return found

    def is_done(self, step: Step) -> bool:
        attempt = self.read().get(step.name)
        if attempt is None or attempt["outcome"] not in ("passed", "unavailable"):
            return False
        return step.makes is None or step.makes.exists()

    def add(self, step: Step, outcome: Outcome, seconds: float, result: Any, end: str) -> None:
        attempt = {
            "stage": self.stage,
            "step": step.name,
            "outcome": outcome,
            "seconds": round(seconds, 1),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "result": result,
            "end": end,
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(attempt) + "\n")


def run_steps(
    steps: Sequence[Step], record: Record, work: Path, limit_s: float, variables: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Run the steps that aren't done; return the names of those that failed, and of those left.

    No step begins that has less than _LEAST_SECONDS, and one that reaches the end of its own time
    or of `limit_s` is killed with all processes that it started.
    """
    end = time.monotonic() + limit_s
    failed: list[str] = []
    left: list[str] = []
    for step in steps:
        if record.is_done(step):
            print(f"{record.stage}/{step.name}: done before", flush=True)
            continue
        remaining = end - time.monotonic()
        if remaining < min(_LEAST_SECONDS, limit_s):
            left.append(step.name)
            continue
        outcome = _run_step(step, record, work, min(step.seconds, remaining), variables)
        if outcome == "timed out" and remaining < step.seconds:
            left.append(step.name)
        elif outcome in ("failed", "timed out"):
            failed.append(step.name)
    return failed, left


def _run_step(
    step: Step, record: Record, work: Path, seconds: float, variables: Mapping[str, str]
) -> Outcome:
    result = work / "steps" / record.stage / step.name.replace(" ", "-")
    result.parent.mkdir(parents=True, exist_ok=True)
    command = [str(part).replace("{result}", str(result)) for part in step.command]
    start = time.monotonic()
    status, printed = run_limited(command, {**variables, **(step.variables or {})}, seconds)
    spent = time.monotonic() - start
    with record.log.open("a", encoding="utf-8") as log:
        log.write(f"\n+ {' '.join(command)}\n{printed}")
    outcomes: dict[int | None, Outcome] = {
        0: "passed",
        None: "timed out",
        UNAVAILABLE: "unavailable",
    }
    outcome = outcomes.get(status, "failed")
    lines = [line for line in printed.splitlines() if line.strip()]
    shown = lines[-_TAIL:] if outcome in ("failed", "timed out") else lines[-1:]
    file = result / step.result if step.result else result
    record.add(step, outcome, spent, _read_result(file), "\n".join(shown))
    print(f"{record.stage}/{step.name}: {outcome}, {spent:.0f} s", flush=True)
    if outcome != "passed":
        print("\n".join(shown), flush=True)
    return outcome


def run_limited(
    command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[int | None, str]:
    """Return the exit status, None if the time was up, and all that was printed."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            return None, printed
    return process.returncode, printed


def _read_result(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def stop_unavailable(reason: str) -> None:
    """End this process as a step whose need isn't there.

    Raises:
        SystemExit: always.
    """
    print(reason, flush=True)
    sys.exit(UNAVAILABLE)


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the last attempt at each step of all stages in a folder of records."""
    for file in sorted(folder.glob("*.jsonl")):
        yield from Record(folder, file.stem).read().values()
