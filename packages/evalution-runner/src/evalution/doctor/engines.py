"""Health of each engine here, examined in a child process, which may crash or hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import InvalidVersion

from evalution.doctor.child import ask_child
from evalution.environment import read_requirements
from evalution.hints import ENGINE_HINTS
from evalution_core.discovery import ENGINES, EngineEntry, available
from evalution_core.plugins import normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True, slots=True)
class Needed:
    """One requirement, what is installed for it, and whether that will do."""

    name: str
    bounds: str
    installed: str | None
    is_met: bool

    @property
    def command(self) -> str:
        """Command that installs it."""
        return f'pip install "{self.name}{self.bounds}"'

    @property
    def complaint(self) -> str:
        """Complaint about one that is not met."""
        if self.installed is None:
            return f"{self.name} is not installed"
        return f"it needs {self.name}{self.bounds}, and {self.installed} is installed"


def find_requirements(name: str) -> list[Needed]:
    """Return what an installed distribution requires on this machine, extras left out."""
    return [_check_requirement(requirement) for requirement in read_requirements(name)]


def _check_requirement(requirement: Requirement) -> Needed:
    bounds = str(requirement.specifier)
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return Needed(requirement.name, bounds, None, False)
    try:
        is_met = requirement.specifier.contains(installed, prereleases=True)
    except InvalidVersion:
        is_met = True  # a version that no rule orders: whoever installed it knows
    return Needed(requirement.name, bounds, installed, is_met)


PATIENCE = 300
"""Seconds that an engine has to import its runtime, load a small model and answer."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """One engine, by the name that leads to it.

    It is proven to work by `proof`, a request that it answered; `untried` says why it was asked
    none, `problem` what speaks against it, `note` which other engine has its name. `remedy` is a
    command or None. `runtime` is what the engine itself says it would run on (`version`, `device`,
    …), None where it doesn't know without a model; `needs` are the versions of what its package
    requires.
    """

    name: str
    distribution: str | None
    version: str | None = None
    problem: str | None = None
    untried: str | None = None
    proof: str | None = None
    note: str | None = None
    remedy: str | None = None
    runtime: Mapping[str, Any] | None = None
    capabilities: Sequence[str] = ()
    needs: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    @property
    def status(self) -> Literal["ok", "untried", "broken", "missing"]:
        if self.version is None:
            return "missing"
        if self.problem is not None:
            return "broken"
        return "untried" if self.untried is not None else "ok"

    def to_dict(self) -> dict[str, Any]:
        return {"status": self.status, **asdict(self)}


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """A way to try an engine: options, a model (None: a small one at hand), and a time limit."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str | None = None
    patience: float = PATIENCE


def choose_engines(names: Sequence[str] = ()) -> list[EngineEntry | str]:
    """Return entries of the engines of these names, of all without a name.

    A well-known engine that isn't installed is returned as its name.

    Raises:
        ConfigurationError: a name is neither of an installed nor of a known engine.
    """
    installed = available()
    taken = {normalize(entry.name) for entry in installed}
    absent = {normalize(name): name for name in ENGINE_HINTS if normalize(name) not in taken}
    if not names:
        return [*installed, *absent.values()]
    return [absent.get(normalize(name)) or ENGINES.find(name) for name in names]


def examine_engine(entry: EngineEntry | str, probe: ProbeOptions | None = None) -> EngineHealth:
    """Try one engine in a child process; one that isn't installed is only named."""
    if isinstance(entry, str):
        package = ENGINE_HINTS[entry]
        problem, remedy = f"{package} is not installed", f"pip install {package}"
        return EngineHealth(entry, package, problem=problem, remedy=remedy)
    needs = find_requirements(entry.distribution) if entry.distribution else []
    probe = probe or ProbeOptions()
    found = ask_child(
        "evalution.doctor.probe",
        entry,
        {"options": probe.options, "model": probe.model},
        probe.patience,
    )
    # One that answers may have what it needs from a package of another name.
    unmet = [need for need in needs if not need.is_met and (need.installed or "proof" not in found)]
    missing = next(iter(unmet), None)
    name, note = _find_name(entry)
    return EngineHealth(
        name,
        entry.distribution,
        entry.version or "(no version)",
        _join_problems(missing.complaint if missing else "", found.get("error", "")) or None,
        found.get("untried"),
        found.get("proof"),
        note,
        None if missing is None else missing.command,
        found.get("runtime"),
        found.get("capabilities", ()),
        {need.name: need.installed for need in needs},
    )


def _join_problems(complaint: str, error: str) -> str:
    """Return both, or the error alone where it says as much."""
    return error if complaint in error else "; ".join(filter(None, (complaint, error)))


def _find_name(entry: EngineEntry) -> tuple[str, str | None]:
    """Return the name that leads to an engine, and a note if that isn't its own name."""
    name = next((name for name, known in ENGINES.names().items() if known == entry), entry.name)
    if name == entry.name:
        return name, None
    others = [
        other.source
        for other in available()
        if normalize(other.name) == normalize(entry.name) and other != entry
    ]
    return name, f"{' and '.join(others)} also has an engine {entry.name}; name this one {name}"
