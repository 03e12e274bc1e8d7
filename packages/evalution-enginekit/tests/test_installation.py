"""What is said where a runtime of servers isn't installed, or can't be."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest

from evalution_core import EngineUnavailableError
from evalution_enginekit.runtime import (
    describe_distribution,
    linux_install_hint,
    require_distribution,
    require_linux,
)

MISSING = "a-distribution-that-nobody-has"


@pytest.mark.parametrize(
    ("python", "lowest", "highest", "hint"),
    [
        ((3, 12), (3, 11), (3, 13), "pip install acme"),
        ((3, 14), (3, 11), (3, 13), "Acme has no release for Python 3.14; make an environment with "
         "Python 3.11 to 3.13, and there pip install acme"),
        ((3, 11), (3, 12), (3, 12), "Acme has no release for Python 3.11; make an environment with "
         "Python 3.12, and there pip install acme"),
    ],
)  # fmt: skip
def test_install_hint_depends_on_the_python_version(
    monkeypatch: pytest.MonkeyPatch,
    python: tuple[int, int],
    lowest: tuple[int, int],
    highest: tuple[int, int],
    hint: str,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    require_linux("Acme")
    assert linux_install_hint("Acme", "pip install acme", lowest=lowest, highest=highest) == hint


def test_other_engines_are_named_off_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    hint = linux_install_hint("Acme", "pip install acme", lowest=(3, 11), highest=(3, 14))
    assert hint.startswith("on darwin take the engine Transformers (pip install evalution-transf")
    with pytest.raises(EngineUnavailableError) as refused:
        require_linux("Acme")
    assert str(refused.value) == f"Acme runs on Linux alone; {hint}"


def test_the_first_installed_distribution_is_described() -> None:
    known = f"pytest {version('pytest')}"
    assert describe_distribution(MISSING, "pytest") == known
    assert describe_distribution(MISSING, "another-one") == MISSING
    require_distribution(MISSING, "pytest", install="pip install acme")
    with pytest.raises(EngineUnavailableError, match="nobody-has or x-y-z is not installed; pip"):
        require_distribution(MISSING, "x-y-z", install="pip install acme")
