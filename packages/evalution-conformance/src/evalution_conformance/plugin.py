"""The pytest plugin: collects a vendor's class, runs its checks, and reports the outcomes."""

from __future__ import annotations

import inspect
import json
import platform
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeGuard, cast

import pytest

from evalution_conformance.subject import Subject
from evalution_conformance.suite import (
    Check,
    Conformance,
    find_checks,
    find_declaration_problem,
    get_group,
    is_chosen,
    make_subject,
    run_check,
)
from evalution_conformance.watch import call_within
from evalution_core.engine import CONTRACT_VERSION

_REFUSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("evalution conformance").addoption(
        "--conformance-report",
        metavar="FILE",
        type=Path,
        help="write the outcome of every conformance check as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--conformance-report")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ReportWriter(file))


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest) -> Generator[Subject]:
    """The engine under test, as the class declares it."""
    declaration = cast(Any, request).cls
    if not _is_declaration(declaration):
        raise pytest.UsageError("the fixture `subject` is for classes of evalution_conformance")
    made = make_subject(declaration)
    yield made
    call_within(made.close, timeout=made.timeout, doing="closing the session")


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item] | None:
    if isinstance(collector, pytest.Class) and _is_declaration(collector.obj):
        return None if is_chosen(collector.obj, name) else []
    if not _is_declaration(obj) or not name.startswith("Test"):
        return None
    problem = find_declaration_problem(obj)
    if problem is not None:
        raise collector.CollectError(problem)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        declaration = _find_declaration(item)
        if declaration is not None and (gap := declaration.gaps.get(item.name)) is not None:
            reason = f"{gap.owner}: {gap.reason}"
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    declaration = _find_declaration(pyfuncitem)
    if declaration is None:
        return None
    check = find_checks(declaration)[pyfuncitem.name]
    tested: Any = pyfuncitem.funcargs["subject"]
    outcome = run_check(check, tested)
    pyfuncitem.stash[_REFUSED] = outcome == "refused"
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    declaration = _find_declaration(item)
    wanted = item.config.getoption("--conformance-report") is not None
    if wanted and declaration is not None and (call.when == "call" or not report.passed):
        check = find_checks(declaration)[item.name]
        refused = item.stash.get(_REFUSED, False)
        entry = make_entry(item, report, declaration, check, refused=refused)
        report.user_properties.append((PROPERTY, entry))
    return report


def _find_declaration(item: pytest.Item) -> type[Conformance] | None:
    """Return the vendor's class if the item is one of the kit's checks in it."""
    declaration = item.cls if isinstance(item, pytest.Function) else None
    if _is_declaration(declaration) and item.name in find_checks(declaration):
        return declaration
    return None


def _is_declaration(found: object) -> TypeGuard[type[Conformance]]:
    return inspect.isclass(found) and issubclass(found, Conformance)


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
