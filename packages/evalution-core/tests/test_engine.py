"""What an engine gets from its base class."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    Model,
    UnsupportedRequestError,
)
from evalution_core.capabilities import GUIDE_CAPABILITIES
from evalution_core.engine import CONTRACT_VERSION


@dataclass(slots=True)
class Acme(BaseEngine):
    device: str = "cpu"

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


RUNNER = """
def start(engine, model):
    return ("{name}", engine, model)
"""

Runners = Callable[..., None]


@pytest.fixture
def runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runners:
    """Installs runners by name; the ones of the environment are out of sight."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(*names: str) -> None:
        for name in names:
            module = f"evalution_test_runner_{name}"
            monkeypatch.delitem(sys.modules, module, raising=False)
            (tmp_path / f"{module}.py").write_text(RUNNER.format(name=name), encoding="utf-8")
            folder = tmp_path / f"{module}-1.0.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8"
            )
            (folder / "entry_points.txt").write_text(
                f"[evalution.runner]\n{name} = {module}:start\n", encoding="utf-8"
            )

    return install


def test_without_a_runner_the_message_says_what_to_install(runners: Runners) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Acme().model(path="builtin:tiny")
    assert str(caught.value) == (
        "engine.model() needs a runner and none is installed; pip install evalution-runner"
    )


def test_the_runner_gets_the_engine_and_the_model(runners: Runners) -> None:
    runners("default")
    engine = Acme("cuda")
    handle: Any = engine.model(
        path="org/tiny",
        label="Tiny",
        tokenizer_path="org/tok",
        revision="main",
        trust_remote_code=True,
        model_kwargs={"dtype": "float32"},
        chat_template_kwargs={"enable_thinking": False},
    )
    name, given, model = handle
    assert name == "default"
    assert given is engine
    assert model == Model(
        "org/tiny",
        "Tiny",
        None,
        "org/tok",
        "main",
        True,
        {"dtype": "float32"},
        {},
        {"enable_thinking": False},
    )


def test_a_model_by_its_path_alone_has_the_models_own_defaults(runners: Runners) -> None:
    runners("default")
    handle: Any = Acme().model(path="org/tiny")
    assert handle[2] == Model("org/tiny")


def test_of_two_runners_the_first_by_name_counts(runners: Runners) -> None:
    runners("second", "first")
    handle: Any = Acme().model(path="org/tiny")
    assert handle[0] == "first"


def test_a_wrong_model_field_is_refused_before_anything_is_loaded(runners: Runners) -> None:
    runners("default")
    with pytest.raises(ConfigurationError, match=r"^model\.path must be a non-empty string"):
        Acme().model(path="")


def test_an_engine_that_declares_nothing_is_the_guides() -> None:
    assert Acme.contract == CONTRACT_VERSION == 1
    assert Acme.capabilities == GUIDE_CAPABILITIES
    assert {"generate", "chat", "loglikelihood", "rolling"} == GUIDE_CAPABILITIES
    engine = Acme()
    assert (engine.default_model(), engine.processes_limit, engine.requests_limit) == (None,) * 3


def test_attaching_is_refused_unless_the_engine_can() -> None:
    assert Capability.ATTACH not in Acme.capabilities
    with pytest.raises(
        UnsupportedRequestError, match=r"^engine Acme can't attach to a live model$"
    ):
        Acme().attach({"model": object()})


def test_an_engine_must_write_build() -> None:
    @dataclass(slots=True)
    class Unbuilt(BaseEngine):
        device: str = "cpu"

    with pytest.raises(TypeError, match="build"):
        Unbuilt()  # pyright: ignore[reportAbstractUsage]


def test_a_capability_is_its_name() -> None:
    assert Capability("beams") is Capability.BEAMS
    assert f"{Capability.TOKEN_IDS}" == "token_ids"
    assert len(set(Capability)) == 18
