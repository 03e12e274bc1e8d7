"""Writes the outcome of every check as JSON, for `--conformance-report`."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest  # noqa: TC002 - pluggy reads the annotations

from evalution_conformance.subject import Subject
from evalution_conformance.suite import Check, Conformance, get_group
from evalution_core.engine import CONTRACT_VERSION

SCHEMA_VERSION = 1
PROPERTY = "evalution_conformance"
"""Name of the property by which a check's entry travels with pytest's report of it."""

_OURS = ("evalution-conformance", "evalution-core", "evalution-enginekit")


class ReportWriter:
    """Collects the entries of a run; a plugin of its own, on the controller under pytest-xdist.

    An outcome is `passed`, `failed`, `skipped`, `refused` (the engine doesn't declare the
    capability and refuses it, as it should), `gap` (fails as declared) or `gap closed` (a declared
    gap that passes: remove it).
    """

    def __init__(self, file: Path):
        self._file = file
        self._engines: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._add(value)  # pyright: ignore[reportArgumentType]

    def pytest_sessionfinish(self) -> None:
        written = {
            "schema_version": SCHEMA_VERSION,
            "contract": CONTRACT_VERSION,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in _OURS},
            "engines": list(self._engines.values()),
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")

    def _add(self, entry: dict[str, Any]) -> None:
        known = self._engines.setdefault(entry["class"], {**entry["engine"], "checks": []})
        known["checks"].append(entry["check"])


def make_entry(
    item: pytest.Item,
    report: pytest.TestReport,
    declaration: type[Conformance],
    check: Check,
    *,
    refused: bool,
) -> dict[str, Any]:
    """Return the report's entry for one check that was run."""
    gap = declaration.gaps.get(item.name)
    return {
        "class": item.nodeid.rpartition("::")[0],
        "engine": _describe_engine(declaration),
        "check": {
            "name": item.name,
            "group": get_group(check),
            "outcome": _name_outcome(report, gap=gap is not None, refused=refused),
            "gap": {"owner": gap.owner, "reason": gap.reason} if gap else None,
            "seconds": round(report.duration, 3),
            "detail": _read_detail(report),
        },
    }


def _describe_engine(declaration: type[Conformance]) -> dict[str, Any]:
    subject = Subject(declaration.engine, declaration.model)
    found = subject.distribution
    return {
        "engine": subject.name,
        "distribution": found.name if found else None,
        "version": found.version if found else None,
        "options": declaration.engine.to_dict(),
        "model": declaration.model.to_dict(),
        "declares": sorted(declaration.engine.capabilities),
        "chosen": None if declaration.checks is None else sorted(declaration.checks),
    }


def _name_outcome(report: pytest.TestReport, *, gap: bool, refused: bool) -> str:
    if report.skipped:
        return "gap" if gap and hasattr(report, "wasxfail") else "skipped"
    if report.passed:
        return "refused" if refused else "passed"
    return "gap closed" if gap and "[XPASS(strict)]" in report.longreprtext else "failed"


def _read_detail(report: pytest.TestReport) -> str | None:
    """Return the reason of a skip, or the one line that says what is wrong."""
    if report.passed:
        return None
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0] if crash else report.longreprtext[:300] or None
