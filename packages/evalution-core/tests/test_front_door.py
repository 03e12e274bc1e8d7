"""The names that the package exports: few enough to read, and each with a use outside of core."""

from __future__ import annotations

import evalution_core


def test_front_door_has_at_most_32_names() -> None:
    assert len(evalution_core.__all__) <= 32
    assert all(hasattr(evalution_core, name) for name in evalution_core.__all__)


def test_front_door_leads_to_classes_and_functions_of_the_package_alone() -> None:
    for name in evalution_core.__all__:
        found = getattr(evalution_core, name)
        module = getattr(found, "__module__", "evalution_core")
        assert module.startswith("evalution_core") or name == "StreamEvent"
