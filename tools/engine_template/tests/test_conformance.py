"""The engine keeps the contract, on a fake of its runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evalution_acme import Acme
from evalution_conformance import EngineConformance
from evalution_core import EngineRuntimeError, EngineUnavailableError, Model

from . import fake_acme


@pytest.fixture(scope="class")
def fake_runtime() -> Iterator[None]:
    """`build` finds the fake where it would import Acme."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evalution_acme.engine.import_runtime", lambda *_, **__: fake_acme)
        yield


@pytest.mark.usefixtures("fake_runtime")
class TestAcme(EngineConformance):
    engine = Acme()
    model = Model("tiny")


@pytest.mark.usefixtures("fake_runtime")
def test_a_failure_to_load_is_the_runtimes_own() -> None:
    with pytest.raises(EngineRuntimeError, match="loading tiny failed: OSError: no device moon"):
        Acme(device="moon").build(Model("tiny"))


def test_a_missing_runtime_is_named_with_what_to_install() -> None:
    with pytest.raises(EngineUnavailableError, match="acme is not installed; pip install acme"):
        Acme().build(Model("tiny"))
