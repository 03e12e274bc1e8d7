"""Whether what a package needs is installed, from metadata alone."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion

from evalution.environment import read_requirements

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
        """What brings it."""
        return f'pip install "{self.name}{self.bounds}"'

    @property
    def complaint(self) -> str:
        """What is wrong, for one that is not met."""
        if self.installed is None:
            return f"{self.name} is not installed"
        return f"it needs {self.name}{self.bounds}, and {self.installed} is installed"


def needed_by(name: str) -> list[Needed]:
    """What a distribution needs on this machine, extras left out; empty if it isn't installed."""
    return [_needed(requirement) for requirement in read_requirements(name)]


def _needed(requirement: Requirement) -> Needed:
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
