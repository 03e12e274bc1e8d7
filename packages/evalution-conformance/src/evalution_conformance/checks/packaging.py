"""What the engine's distribution says of itself."""

from __future__ import annotations

import re
from importlib.metadata import Distribution
from importlib.resources import files

import pytest

from evalution_conformance.subject import Subject

_CORE = re.compile(r"^evalution[-_.]core\b\s*\(?(?P<range>[^;)]*)")


class PackagingChecks:
    def test_the_range_of_core_is_compatible(self, subject: Subject) -> None:
        """The distribution requires evalution-core in a range, with both ends and no `==`."""
        found = _distribution(subject)
        ranges = [m["range"] for line in found.requires or [] if (m := _CORE.match(line))]
        assert ranges, f"{found.name} doesn't require evalution-core"
        for bounds in ranges:
            operators = {re.sub(r"[^<>=!~].*", "", part.strip()) for part in bounds.split(",")}
            assert operators in ({">=", "<"}, {"~="}), (
                f"{found.name} requires evalution-core{bounds}; write a range as >=1.0,<2"
            )

    def test_the_package_is_typed(self, subject: Subject) -> None:
        """The package has a `py.typed`, so that type checkers read its annotations."""
        _distribution(subject)
        package = type(subject.engine).__module__.partition(".")[0]
        assert files(package).joinpath("py.typed").is_file(), f"{package} has no py.typed"

    def test_the_distribution_has_a_licence(self, subject: Subject) -> None:
        """The metadata names a licence."""
        found = _distribution(subject)
        keys = ("License-Expression", "License-File", "License")
        classifiers = found.metadata.get_all("Classifier") or []
        named = any(found.metadata.get_all(key) for key in keys)
        assert named or any(line.startswith("License ::") for line in classifiers), (
            f"the metadata of {found.name} names no licence"
        )


def _distribution(subject: Subject) -> Distribution:
    if subject.distribution is None:
        pytest.skip(f"{type(subject.engine).__module__} comes from no installed distribution")
    return subject.distribution
