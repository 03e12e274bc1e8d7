"""One declaration that stands for several suites."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.suites.declaration import SuiteDeclaration
from evalution.suites.suite import AnySuite, Suite
from evalution_core import ConfigurationError


@dataclass(kw_only=True)
class SuiteSet(SuiteDeclaration):
    """A declaration whose suites are known once what it names has been looked up.

    Each of them is a suite of the run like any other, with a title, samples and scores of its own.
    """

    @abstractmethod
    def suites(self) -> Sequence[AnySuite]:
        """The suites, made anew; called before a model is loaded.

        Raises:
            ConfigurationError: something that it names isn't there, or can't be a suite.
        """
        ...


def expanded(declared: Iterable[SuiteDeclaration]) -> list[AnySuite]:
    """The suites that run for what was declared, in that order.

    Raises:
        ConfigurationError: as `SuiteSet.suites`, or a set is empty or holds what is no suite.
    """
    found: list[AnySuite] = []
    for one in declared:
        found += _of_set(one) if isinstance(one, SuiteSet) else [_as_suite(one)]
    return found


def _of_set(declared: SuiteSet) -> list[AnySuite]:
    with wrap_errors(f"test {declared.title!r}", ConfigurationError):
        members = list(declared.suites())
    if not members:
        raise ConfigurationError(f"test {declared.title!r} stands for no suite at all")
    return [_as_suite(member) for member in members]


def _as_suite(member: Any) -> AnySuite:
    if not isinstance(member, Suite):
        raise ConfigurationError(
            f"a test must be a suite such as suites.Generation(…), got {member!r}"
        )
    return member  # pyright: ignore[reportUnknownVariableType]
