"""Backends are found by name; a package that is broken says so itself, and hurts no other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_training import available_backends, load_backend, register_backend
from evalution_training.backends.mock import MockBackend

Install = Callable[..., Path]
GROUP = "evalution.training_backends"


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Duck:
    """A backend without a base class."""

    name: ClassVar[str] = "duck"
    Config: ClassVar[type] = Params

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        return {}

    def teardown(self, handles: dict[str, Any]) -> None:
        return None


def test_the_built_in_backends_are_listed() -> None:
    assert {"local", "mock", "tinker"} <= {entry.name for entry in available_backends()}


@pytest.mark.parametrize(
    "name",
    ["mock", "MOCK", "evalution-training/mock", "evalution_training.backends.mock:MockBackend"],
)
def test_a_backend_is_found_by_each_of_its_names(name: str) -> None:
    assert load_backend(name) is MockBackend


def test_listing_imports_no_backend(install: Install) -> None:
    install("bomb", {"a_plugin.py": "raise SystemError('imported')"}, {GROUP: "bomb = a_plugin:B"})
    (entry,) = [entry for entry in available_backends() if entry.name == "bomb"]
    assert (entry.distribution, entry.version) == ("bomb", "1.0")
    assert "a_plugin" not in sys.modules


def test_importing_the_package_imports_no_runtime() -> None:
    code = (
        "import evalution_training, sys; print({'torch', 'tinker', 'evalution'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_broken_package_is_named_with_its_cause(install: Install) -> None:
    install("bomb", {"a_plugin.py": "raise SystemError('boom')"}, {GROUP: "bomb = a_plugin:B"})
    with pytest.raises(
        EngineUnavailableError, match=r"'bomb' of bomb .*SystemError: boom"
    ) as raised:
        load_backend("bomb")
    assert isinstance(raised.value.__cause__, SystemError)
    assert load_backend("mock") is MockBackend


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no backend 'lokal' is installed; did you mean 'local'\? .*mock"
    ):
        load_backend("lokal")


def test_two_packages_with_one_name_are_distinguished(install: Install) -> None:
    for package in ("first", "second"):
        install(package, {}, {GROUP: "twin = evalution_training.backends.mock:MockBackend"})
    with pytest.raises(ConfigurationError, match="name one of: first/twin, second/twin"):
        load_backend("twin")
    assert load_backend("second/twin") is MockBackend


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("B = 3", "isn't a class, but 3"),
        ("class B: pass", "it lacks prepare, teardown, Config"),
        ("class B:\n    Config = dict\n    def prepare(s): ...\n    def teardown(s): ...",
         r"it lacks Config \(a pydantic model\)"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_a_backend_is_refused(
    install: Install, source: str, message: str
) -> None:
    install("odd", {"a_plugin.py": source}, {GROUP: "odd = a_plugin:B"})
    with pytest.raises(ConfigurationError, match=message):
        load_backend("odd")


def test_a_registered_class_is_known_in_this_process() -> None:
    assert register_backend("duck")(Duck) is Duck
    assert register_backend("duck")(Duck) is Duck, "twice is no clash"
    assert load_backend("Duck") is Duck


def test_registering_a_local_class_or_a_taken_name_is_refused() -> None:
    class Local(Duck):
        pass

    with pytest.raises(ConfigurationError, match="must stand at module level"):
        register_backend("duck")(Local)
    register_backend("duck")(Duck)
    with pytest.raises(ConfigurationError, match=r"'duck' is already registered by .*:Duck"):
        register_backend("duck")(type("Other", (Duck,), {}))
