"""What a distribution requires, from the metadata of what is installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement


def requirements_of(name: str, extras: Iterable[str] = ()) -> list[Requirement]:
    """The requirements that hold on this machine, with those of `extras`.

    Empty where the distribution isn't installed; a line that isn't of today's form is left out.
    """
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    found: list[Requirement] = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # an old package's own spelling
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append(requirement)
    return found
