"""Names that the shell completes; read from package metadata, so that nothing is imported."""

from __future__ import annotations

from collections.abc import Iterable

from evalution.hints import INSTALL_HINTS
from evalution.suites.discovery import available_suites
from evalution_core import available


def engine_names(incomplete: str) -> list[str]:
    """Installed engines whose names begin like this, as written or in small letters."""
    return _beginning(incomplete, [entry.name for entry in available()])


def known_engine_names(incomplete: str) -> list[str]:
    """Installed engines, and those that could be installed."""
    return _beginning(incomplete, [*(entry.name for entry in available()), *INSTALL_HINTS])


def suite_names(incomplete: str) -> list[str]:
    """Installed suites whose names begin like this."""
    return _beginning(incomplete, available_suites())


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    # What is offered has to begin with what was typed: a name in small letters is right as well.
    offered = {name if name.startswith(incomplete) else name.lower() for name in names}
    return sorted(name for name in offered if name.startswith(incomplete))
