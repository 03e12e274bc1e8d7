"""Declares an engine's conformance, chooses its checks and runs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal, TypeVar, get_args

import pytest

from evalution_conformance.subject import Subject, require_output
from evalution_conformance.watch import StuckError, run_watched
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    UnsupportedRequestError,
)
from evalution_core.plugins import did_you_mean
from evalution_core.requests import DistributionRequest

Owner = Literal["ours", "upstream", "never"]
Check = Callable[..., None]
C = TypeVar("C", bound=Callable[..., Any])

WARNED: dict[str, str] = {}
"""New checks, each with the release of this kit from which it fails; until then it warns."""

_needs: dict[Check, frozenset[Capability]] = {}


def needs(*capabilities: Capability) -> Callable[[C], C]:
    """Mark a check, or all checks of a class, as sending requests of these capabilities.

    Those that a session doesn't declare must be refused.
    """

    def mark(target: C) -> C:
        is_class = inspect.isclass(target)
        members: Mapping[str, Any] = vars(target) if is_class else {target.__name__: target}
        for name, check in members.items():
            if name.startswith("test_"):
                _needs[check] = _needs.get(check, frozenset()) | frozenset(capabilities)
        return target

    return mark


_narrow: set[Check] = set()


def fills_the_window(check: C) -> C:
    """Mark a check as sending more than a window: where that is long, a shorter one is built."""
    _narrow.add(check)
    return check


@dataclass(frozen=True, slots=True)
class Gap:
    """A check that the engine fails today.

    `owner` says who has to act: `ours`, `upstream`, or `never` where nobody will. A gap is strict:
    once the check passes, the run fails until the gap is removed.
    """

    owner: Owner
    reason: str

    def __post_init__(self) -> None:
        if self.owner not in get_args(Owner):
            raise ValueError(f"a gap is 'ours', 'upstream' or 'never', got {self.owner!r}")
        if not self.reason.strip():
            raise ValueError("a gap needs a reason; name the issue that tracks it")


class Conformance:
    """The settings of a vendor's class; the subclasses bring the checks."""

    engine: ClassVar[BaseEngine]
    """The engine under test, configured."""
    model: ClassVar[Model]
    """A small model for it. With `builtin:tiny`, answers are compared with reference values."""
    checks: ClassVar[Collection[str] | None] = None
    """Groups of checks, or single checks, to run; None runs all.

    For an engine that wraps one that runs them all. A report names the choice.
    """
    gaps: ClassVar[Mapping[str, Gap]] = {}
    """Checks that are known to fail, by name."""
    oracle: ClassVar[BaseEngine | None] = None
    """An engine whose answers count as correct, where the model has no reference values."""
    oracle_model: ClassVar[Model | None] = None
    """The model of `oracle`, where it is another one, such as a quantised model's float weights."""
    untemplated: ClassVar[Model | None] = None
    """A model without a chat template; not needed with `builtin:tiny`."""
    incomplete: ClassVar[Model | None] = None
    """A model that lacks one of its weights; not needed with `builtin:tiny`."""
    tolerance: ClassVar[float | None] = None
    """Nats by which a token's log-probability may be off; None: by the session's dtype."""
    reference_tolerance: ClassVar[float | None] = None
    """As `tolerance`, from the reference values or the oracle's; None: the same."""
    max_new_tokens: ClassVar[int] = 16
    """Length of the completions that checks request."""
    timeout: ClassVar[float] = 60.0
    """Seconds for one check, not counting the building of sessions."""


@cache
def find_checks(declaration: type) -> Mapping[str, Check]:
    """Return all checks of a class by name, in the order in which they are written."""
    found: dict[str, Check] = {}
    for base in reversed(declaration.__mro__):
        if base.__module__.startswith(f"{__package__}."):
            found |= {name: check for name, check in vars(base).items() if name.startswith("test_")}
    return found


def get_group(check: Check) -> str:
    """Return the name of the group that a check belongs to."""
    return check.__module__.rpartition(".")[2]


def get_needs(check: Check) -> frozenset[Capability]:
    """Return the capabilities of the requests that a check sends."""
    return _needs.get(check, frozenset())


def is_chosen(declaration: type[Conformance], name: str) -> bool:
    """Return False for a check that the class leaves out."""
    if declaration.checks is None:
        return True
    check = find_checks(declaration).get(name)
    return check is None or name in declaration.checks or get_group(check) in declaration.checks


def make_subject(declaration: type[Conformance]) -> Subject:
    """Build the subject that a vendor's class describes."""
    return Subject(
        declaration.engine,
        declaration.model,
        declaration.oracle,
        declaration.oracle_model,
        declaration.untemplated,
        declaration.tolerance,
        declaration.reference_tolerance,
        declaration.max_new_tokens,
        declaration.timeout,
        declaration.incomplete,
    )


def find_declaration_problem(declaration: type[Conformance]) -> str | None:
    """Return the reason to reject a vendor's class as it stands; None if there is none."""
    name = declaration.__name__
    kinds = (("engine", BaseEngine), ("model", Model))
    for attribute, kind in kinds:
        value = getattr(declaration, attribute, None)
        if not isinstance(value, kind):
            return f"{name}.{attribute} must be a {kind.__name__}, got {value!r}"
    checks = find_checks(declaration)
    for check, function in checks.items():
        if getattr(declaration, check, None) is not function:
            return (
                f"{name} overrides {check}, but checks can't be changed; declare "
                f'gaps = {{"{check}": Gap("ours", "…")}} if the engine fails it'
            )
    return _find_choice_problem(name, declaration.checks, checks) or _find_gap_problem(
        name, declaration.gaps, checks
    )


def _find_choice_problem(
    name: str, chosen: Collection[str] | None, checks: Mapping[str, Check]
) -> str | None:
    if chosen is None:
        return None
    if isinstance(chosen, str) or not chosen:
        return f"{name}.checks must be a set of names, or None for all checks, got {chosen!r}"
    known = list(dict.fromkeys(map(get_group, checks.values())))
    for choice in chosen:
        if choice not in known and choice not in checks:
            return (
                f"{name}.checks names {choice!r}, which is neither a group nor a check of this kit"
                f"{did_you_mean(choice, [*known, *checks])} (groups: {', '.join(known)})"
            )
    return None


def _find_gap_problem(
    name: str, gaps: Mapping[str, Any], checks: Mapping[str, Check]
) -> str | None:
    for check, gap in gaps.items():
        if check not in checks:
            return (
                f"{name}.gaps names {check!r}, which is not a check of this kit"
                f"{did_you_mean(check, checks)}"
            )
        if not isinstance(gap, Gap):
            return f"{name}.gaps[{check!r}] must be a Gap, got {gap!r}"
    return None


_SCORING = {Capability.LOGLIKELIHOOD, Capability.ROLLING}


_MOST_STUCK = 5
"""Checks that may take too long before the others aren't tried: each costs its whole timeout."""


class NotRun(pytest.skip.Exception):
    """Another check has failed over what this one needs too."""


def run_check(check: Check, subject: Subject) -> Literal["passed", "refused"]:
    """Run one check within the subject's `timeout`; the error that it raises says what is wrong.

    With a capability that it needs and the session doesn't declare, the same requests are sent and
    must be refused; before them a fixed one, as the check may need facts that aren't known.

    Raises:
        NotRun: another check of the subject has failed over what this one needs too.
    """
    if subject.stuck >= _MOST_STUCK:
        text = f"not run: {subject.stuck} checks took longer than {subject.timeout:g} s each"
        raise NotRun(f"{text}; each names the call that it waited for")
    try:
        return run_watched(lambda: _run(check, subject), timeout=subject.timeout)
    except StuckError:
        subject.stuck += 1
        subject.abandon()
        raise
    except Exception as error:
        if subject.is_repeated(error):
            raise NotRun(f"not run: {error}") from None
        raise


_PROBES = (
    (
        Capability.TOKEN_IDS,
        GenerationRequest("The", input_ids=[1, 2], max_new_tokens=1),
        LoglikelihoodRequest("The", " cat", [1], [2]),
    ),
    (
        Capability.TRUNCATION,
        GenerationRequest("The", max_new_tokens=1, truncation="error"),
        LoglikelihoodRequest("The", " cat", truncation="error"),
    ),
)
"""Requests that need a capability, and no fact that a session may not know."""


def _find_probes(
    session: BaseInferenceSession, missing: Collection[Capability]
) -> list[Callable[[], object]]:
    """Return calls that need these capabilities and neither a tokenizer nor a known window."""
    found: list[Callable[[], object]] = []
    for needed, prompt, pair in _PROBES:
        if needed in missing and Capability.GENERATE in session.capabilities:
            found.append(partial(session.generate, [prompt]))
        if needed in missing and Capability.LOGLIKELIHOOD in session.capabilities:
            found.append(partial(session.loglikelihood, [pair]))
    if Capability.DISTRIBUTIONS in missing:
        rows = DistributionRequest([1, 2])
        found.append(lambda: [require_output(r) for _, r in session.distributions([(0, rows)])])
    return found


def _run(check: Check, subject: Subject) -> Literal["passed", "refused"]:
    if check in _narrow:
        subject = subject.narrow()
    wanted = get_needs(check)
    missing = wanted - subject.capabilities if wanted else None
    if not missing:
        if wanted & _SCORING:
            subject.require_self_check()
        check(None, subject)
        return "passed"
    probes = _find_probes(subject.session, missing)
    raised: Exception | None = None
    for ask in (*probes, partial(check, None, subject)):
        try:
            ask()
        except UnsupportedRequestError:
            continue
        except pytest.skip.Exception:
            if not probes:
                raise
        except Exception as error:  # noqa: BLE001 - anything else than a refusal fails the check
            raised = error
            break
        else:
            break
    else:
        return "refused"
    raise AssertionError(
        f"{subject.name} doesn't declare {', '.join(sorted(missing))}, so the request must be "
        f"refused with UnsupportedRequestError, but {repr(raised) if raised else 'it was served'}"
    ) from raised
