"""Checks and their requirements, what a vendor declares, and how one check is run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from evalution_conformance.gaps import Gap
from evalution_conformance.subject import Subject
from evalution_conformance.watch import StuckError, watched
from evalution_core import BaseEngine, Capability, Model, UnsupportedRequestError

Check = Callable[..., None]
C = TypeVar("C", bound=Check)
G = TypeVar("G", bound=type)

_needs: dict[Check, frozenset[Capability]] = {}


def needs(*capabilities: Capability) -> Callable[[C], C]:
    """The check sends requests of these capabilities; undeclared ones must be refused."""

    def mark(check: C) -> C:
        _needs[check] = frozenset(capabilities)
        return check

    return mark


def group(*capabilities: Capability) -> Callable[[G], G]:
    """All checks of the class need these capabilities besides their own."""

    def mark(checks: G) -> G:
        for name, check in vars(checks).items():
            if name.startswith("test_"):
                _needs[check] = _needs.get(check, frozenset()) | frozenset(capabilities)
        return checks

    return mark


class Conformance:
    """What a vendor declares of an engine; the subclasses bring the checks."""

    engine: ClassVar[BaseEngine]
    """The engine under test, configured."""
    model: ClassVar[Model]
    """A small model for it. With `builtin:tiny`, answers are held against reference values."""
    gaps: ClassVar[Mapping[str, Gap]] = {}
    """Checks that are known to fail, by name."""
    oracle: ClassVar[BaseEngine | None] = None
    """An engine whose answers count as right, where the model has no reference values."""
    oracle_model: ClassVar[Model | None] = None
    """What `oracle` runs, where that is another model: a quantised one's weights as floats, say."""
    untemplated: ClassVar[Model | None] = None
    """A model without a chat template; not needed with `builtin:tiny`."""
    tolerance: ClassVar[float | None] = None
    """Nats by which a token's log-probability may be off; None: by the session's dtype."""
    reference_tolerance: ClassVar[float | None] = None
    """As `tolerance`, from the reference values or the oracle's; None: the same."""
    max_new_tokens: ClassVar[int] = 16
    """Length of the completions that checks ask for."""
    timeout: ClassVar[float] = 60.0
    """Seconds for one check, not counting the building of sessions."""


def checks_of(declaration: type) -> dict[str, Check]:
    """The checks of a class by name, in the order in which they are written."""
    found: dict[str, Check] = {}
    for base in reversed(declaration.__mro__):
        if base.__module__.startswith(f"{__package__}."):
            found |= {name: check for name, check in vars(base).items() if name.startswith("test_")}
    return found


def subject_of(declaration: type[Conformance]) -> Subject:
    return Subject(
        declaration.engine,
        declaration.model,
        oracle=declaration.oracle,
        oracle_model=declaration.oracle_model,
        untemplated=declaration.untemplated,
        tolerance=declaration.tolerance,
        reference_tolerance=declaration.reference_tolerance,
        max_new_tokens=declaration.max_new_tokens,
        timeout=declaration.timeout,
    )


def declaration_problem(declaration: type[Conformance]) -> str | None:
    """Why a vendor's class can't be taken as it stands; None if it can."""
    name = declaration.__name__
    kinds = (("engine", BaseEngine), ("model", Model))
    for attribute, kind in kinds:
        value = getattr(declaration, attribute, None)
        if not isinstance(value, kind):
            return f"{name}.{attribute} must be a {kind.__name__}, got {value!r}"
    checks = checks_of(declaration)
    for check, function in checks.items():
        if getattr(declaration, check, None) is not function:
            return (
                f"{name} overrides {check}, but checks can't be changed; declare "
                f'gaps = {{"{check}": Gap("ours", "…")}} if the engine fails it'
            )
    return _gap_problem(name, declaration.gaps, checks)


def _gap_problem(name: str, gaps: Mapping[str, Any], checks: Mapping[str, Check]) -> str | None:
    for check, gap in gaps.items():
        if check not in checks:
            near = difflib.get_close_matches(check, checks, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{name}.gaps names {check!r}, which is no check of this kit{hint}"
        if not isinstance(gap, Gap):
            return f"{name}.gaps[{check!r}] must be a Gap, got {gap!r}"
    return None


def run_check(check: Check, subject: Subject) -> Literal["passed", "refused"]:
    """Run one check, bounded in time; what it raises says what is wrong.

    With a capability that it needs and the session doesn't declare, the same requests are sent and
    must be refused.
    """
    try:
        return watched(lambda: _run(check, subject), timeout=subject.timeout)
    except StuckError:
        subject.abandon()
        raise


def _run(check: Check, subject: Subject) -> Literal["passed", "refused"]:
    wanted = _needs.get(check)
    missing = wanted - subject.capabilities if wanted else None
    if not missing:
        check(None, subject)
        return "passed"
    found: Exception | None = None
    try:
        check(None, subject)
    except UnsupportedRequestError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - anything else than a refusal is the finding
        found = error
    raise AssertionError(
        f"{subject.name} doesn't declare {', '.join(sorted(missing))}, so the request must be "
        f"refused with UnsupportedRequestError, but {repr(found) if found else 'it was served'}"
    ) from found
