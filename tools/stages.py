"""Runs the stages of tools/ci.py and prints their table."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
FINDINGS = re.compile(r"E   |FAILED |ERROR |.*\berror: | *--> |check \S+: FAILED")
FINDINGS_SHOWN = 40


class Stages:
    """Runs stages, also from several threads, and keeps their outcomes for the table at the end."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._rows: list[tuple[str, float, float, bool, str]] = []
        self._counts = {"passed": 0, "failed": 0, "skipped": 0}
        self._findings: list[str] = []
        self._lock = threading.Lock()

    def run(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        is_beside: bool = False,
    ) -> bool:
        """Run one command and return whether it succeeded.

        What it prints is shown as it comes, or at its end if it runs beside others.
        """
        held: list[str] = []

        def show(text: str) -> None:
            if is_beside:
                held.append(text)
            else:
                print(text, end="", flush=True)

        show(f"\n+ {' '.join(command)}\n")
        start = time.monotonic()
        summary = ""
        findings: list[str] = []
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self.add(name, 0.0, passed=False)
            self._findings += [f"\n{name}:\n", f"{error}\n"]
            return False
        last = deque[str](maxlen=FINDINGS_SHOWN)
        with process:
            for line in process.stdout or ():
                show(line)
                last.append(line)
                if FINDINGS.match(line):
                    findings.append(line)
                if COUNTS.search(line) and re.search(r" in [\d.]+s", line):
                    summary = line
            _, code, usage = os.wait4(process.pid, 0)
            status = process.returncode = os.waitstatus_to_exitcode(code)
        print("".join(held), end="", flush=True)
        processor = usage.ru_utime + usage.ru_stime
        self.add(name, time.monotonic() - start, status == 0, summary, processor)
        if status:
            self._findings += [f"\n{name}:\n", *(findings[-FINDINGS_SHOWN:] or last)]
        return status == 0

    def add(
        self, name: str, seconds: float, passed: bool, summary: str = "", processor: float = 0.0
    ) -> None:
        """Record the outcome of a stage; `summary` is the last line of a run of pytest.

        `processor` are the seconds of its processes, without those that nobody waited for.
        """
        counts = {kind.rstrip("s"): int(number) for number, kind in COUNTS.findall(summary)}
        with self._lock:
            self._counts["passed"] += counts.get("passed", 0)
            self._counts["failed"] += counts.get("failed", 0) + counts.get("error", 0)
            self._counts["skipped"] += counts.get("skipped", 0)
            if not passed and not counts.get("failed") and not counts.get("error"):
                self._counts["failed"] += 1
            shown = ", ".join(f"{number} {kind}" for number, kind in COUNTS.findall(summary))
            self._rows.append((name, seconds, processor, passed, shown))
        print(f"{name}: {'passed' if passed else 'FAILED'}, {seconds:.0f} s", flush=True)

    def close(self) -> int:
        """Print what failed, the table and the closing line; return the exit status."""
        print("".join(self._findings), end="")
        print(f"\n{'stage':34}{'seconds':>8}{'processor':>10}  outcome")
        for name, seconds, processor, passed, shown in self._rows:
            outcome = "passed" if passed else "FAILED"
            print(f"{name:34}{seconds:8.0f}{processor:10.0f}  {outcome}  {shown}")
        failed = [name for name, _, _, passed, _ in self._rows if not passed]
        total = time.monotonic() - self._start
        processor = sum(row[2] for row in self._rows)
        outcome = ", ".join(failed) + " FAILED" if failed else "passed"
        print(f"{'all':34}{total:8.0f}{processor:10.0f}  {outcome}")
        counts = self._counts
        print(
            f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        )
        return 1 if failed else 0
