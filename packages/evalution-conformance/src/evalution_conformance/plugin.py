"""The pytest plugin: collects a vendor's class, runs its checks, applies its gaps."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeGuard, cast

import pytest

from evalution_conformance.report import PROPERTY, ReportWriter, entry_of
from evalution_conformance.subject import Subject
from evalution_conformance.suite import (
    Conformance,
    checks_of,
    declaration_problem,
    run_check,
    subject_of,
)
from evalution_conformance.watch import within

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
    made = subject_of(declaration)
    yield made
    within(made.close, timeout=made.timeout, doing="closing the session")


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    if not _is_declaration(obj) or not name.startswith("Test"):
        return
    problem = declaration_problem(obj)
    if problem is not None:
        raise collector.CollectError(problem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        declaration = _declaration_of(item)
        if declaration is not None and (gap := declaration.gaps.get(item.name)) is not None:
            reason = f"{gap.owner}: {gap.reason}"
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    declaration = _declaration_of(pyfuncitem)
    if declaration is None:
        return None
    check = checks_of(declaration)[pyfuncitem.name]
    tested: Any = pyfuncitem.funcargs["subject"]
    outcome = run_check(check, tested)
    pyfuncitem.stash[_REFUSED] = outcome == "refused"
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    declaration = _declaration_of(item)
    wanted = item.config.getoption("--conformance-report") is not None
    if wanted and declaration is not None and (call.when == "call" or not report.passed):
        check = checks_of(declaration)[item.name]
        refused = item.stash.get(_REFUSED, False)
        entry = entry_of(item, report, declaration, check, refused=refused)
        report.user_properties.append((PROPERTY, entry))
    return report


def _declaration_of(item: pytest.Item) -> type[Conformance] | None:
    """The vendor's class, if the item is one of the kit's checks in it."""
    declaration = item.cls if isinstance(item, pytest.Function) else None
    if _is_declaration(declaration) and item.name in checks_of(declaration):
        return declaration
    return None


def _is_declaration(found: object) -> TypeGuard[type[Conformance]]:
    return inspect.isclass(found) and issubclass(found, Conformance)
