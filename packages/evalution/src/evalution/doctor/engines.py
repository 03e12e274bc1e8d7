"""Health of each engine here, examined in a child process, which may crash or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from packaging.version import InvalidVersion

from evalution.environment import read_requirements
from evalution.hints import ENGINE_HINTS
from evalution.redaction import mask_text
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


PATIENCE = 120
"""Seconds that an engine has to import its runtime."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """One engine; `problem` is None if nothing speaks against it, `remedy` a command or None.

    `runtime` is what the engine itself says it would run on (`version`, `device`, …), None where
    it doesn't know without a model; `needs` are the versions of what its package requires.
    """

    name: str
    distribution: str | None
    version: str | None = None
    problem: str | None = None
    remedy: str | None = None
    runtime: Mapping[str, Any] | None = None
    capabilities: Sequence[str] = ()
    needs: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    @property
    def is_installed(self) -> bool:
        return self.version is not None

    @property
    def works(self) -> bool:
        return self.is_installed and self.problem is None

    def to_dict(self) -> dict[str, Any]:
        return {"works": self.works, **asdict(self)}


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


def examine_engine(entry: EngineEntry | str, patience: float = PATIENCE) -> EngineHealth:
    """Ask one engine, for at most `patience` seconds; one that isn't installed is only named."""
    if isinstance(entry, str):
        package = ENGINE_HINTS[entry]
        problem, remedy = f"{package} is not installed", f"pip install {package}"
        return EngineHealth(entry, package, problem=problem, remedy=remedy)
    needs = find_requirements(entry.distribution) if entry.distribution else []
    answer = _ask(entry, patience)
    missing = next((need for need in needs if not need.is_met), None)
    problem: str | None = answer["error"]
    if missing is not None:
        problem = missing.complaint
    return EngineHealth(
        entry.name,
        entry.distribution,
        entry.version or "(no version)",
        problem,
        _find_remedy(entry, missing, answer) if problem else None,
        answer["runtime"],
        answer["capabilities"],
        {need.name: need.installed for need in needs},
    )


def _find_remedy(
    entry: EngineEntry, missing: Needed | None, answer: Mapping[str, Any]
) -> str | None:
    if missing is not None:
        return missing.command
    if answer["imported"] or answer["lost"] or entry.distribution is None:
        return None  # the engine's own message says what to do, or nobody knows
    return f"pip install --force-reinstall {entry.distribution}"


def _ask(entry: EngineEntry, patience: float) -> dict[str, Any]:
    """The child's answer, or what became of the child in place of one."""
    fields = (entry.name, entry.value, entry.distribution, entry.version)
    question = json.dumps({"path": sys.path, "entry": fields})
    # Files and no pipes: a grandchild that lives on would hold a pipe open.
    with TemporaryFile() as asked, TemporaryFile() as answered, TemporaryFile() as printed:
        asked.write(question.encode())
        asked.seek(0)
        fault = _run_child(asked, answered, printed, patience)
        answered.seek(0)
        text = answered.read().decode(errors="replace")
        if fault is None and text:
            return {**json.loads(text), "lost": False}
        problem = fault or "it ended the process while it was imported"
        last = _read_last_line(printed)
        error = f"{problem}{f'; it printed last: {last}' if last else ''}"
    return {"imported": False, "lost": True, "capabilities": [], "runtime": None, "error": error}


def _run_child(
    asked: IO[bytes], answered: IO[bytes], printed: IO[bytes], patience: float
) -> str | None:
    """Run the child and return the fault of its end, if any; it and its children are gone then."""
    # -P: a file of the working folder must not take the place of a module.
    command = [sys.executable, "-P", "-m", "evalution.doctor.probe"]
    child = subprocess.Popen(
        command, stdin=asked, stdout=answered, stderr=printed, start_new_session=True
    )
    try:
        status = child.wait(patience)
    except subprocess.TimeoutExpired:
        return f"importing it was not done after {patience:g} s"
    finally:
        _kill_group(child)
    if status < 0:
        return f"it crashed with {signal.Signals(-status).name} while it was imported"
    return f"it ended the process with status {status}" if status else None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        child.kill()
    else:
        with suppress(ProcessLookupError):  # where all of them ended by themselves
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read_last_line(printed: IO[bytes]) -> str:
    printed.seek(0)
    lines = printed.read().decode(errors="replace").strip().splitlines()
    return mask_text(lines[-1].strip())[:200] if lines else ""
