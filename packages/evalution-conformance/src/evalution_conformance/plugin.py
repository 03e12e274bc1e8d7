"""The pytest plugin: collects a vendor's class, runs the chosen checks, applies its gaps."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeGuard, cast

import pytest

from evalution_conformance.report import PROPERTY, ReportWriter, make_entry
from evalution_conformance.subject import Subject
from evalution_conformance.suite import (
    Conformance,
    find_checks,
    find_declaration_problem,
    is_chosen,
    make_subject,
    run_check,
)
from evalution_conformance.watch import call_within

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
