"""Replicas as configuration: its options, and what it takes over from the engine within."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from evalution.replicas import Replicas
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineSpec,
    Model,
    UnknownEngineError,
    secret,
)
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock

MOCK = "evalution_enginekit.mock:Mock"


@dataclass(slots=True)
class Limited(BaseEngine):
    processes: int | None = None
    requests: int | None = None
    api_key: str | None = secret()

    capabilities = frozenset({Capability.GENERATE, Capability.ATTACH})

    def build(self, model: Model) -> Any:
        raise NotImplementedError

    @property
    def processes_limit(self) -> int | None:
        return self.processes

    @property
    def requests_limit(self) -> int | None:
        return self.requests

    def default_model(self) -> str | None:
        return "served"


def test_engine_may_be_given_by_name() -> None:
    spec = {"engine": {"kind": MOCK, "params": {"max_model_len": 99}}, "replicas": 2}
    replicas = Replicas.from_options(spec)
    assert replicas == Replicas(Mock(99), 2) == Replicas(EngineSpec(MOCK, {"max_model_len": 99}), 2)
    assert replicas.inner == Mock(99)
    assert replicas.to_dict()["engine"] == {"kind": MOCK, "params": Mock(99).to_dict()}
    assert Replicas.from_options(replicas.to_dict()) == replicas


@pytest.mark.parametrize(
    "written",
    [
        MOCK,
        {"type": MOCK, "max_model_len": 512},
        {"kind": MOCK},
        {"kind": MOCK, "params": {"max_model_len": 512}},
    ],
)
def test_spec_may_write_the_engine_in_any_of_its_forms(written: Any) -> None:
    assert Replicas.from_options({"engine": written, "replicas": 2}) == Replicas(Mock(), 2)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (5, "must be an engine's name, a mapping with 'type'.*got 5"),
        ({"max_model_len": 5}, "must be an engine's name"),
        ({"kind": MOCK, "max_model_len": 5}, "option 'engine.*max_model_len' of engine Replicas"),
        ({"type": MOCK, "max_model": 5}, "engine Mock has no option 'max_model'"),
    ],
)
def test_spec_that_writes_the_engine_wrong_is_reported(written: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Replicas.from_options({"engine": written, "replicas": 2})


def test_capabilities_and_limits_are_those_of_the_engine_within() -> None:
    replicas = Replicas(Limited(processes=5, requests=9), 2)
    assert replicas.capabilities == {Capability.GENERATE}
    assert replicas.processes_limit == 2
    assert replicas.requests_limit == 9
    assert replicas.default_model() == "served"
    assert Replicas(Mock(), 1).capabilities == MOCK_CAPABILITIES
    assert Replicas(Mock(), 2).capabilities == MOCK_CAPABILITIES - {Capability.DISTRIBUTIONS}
    assert Capability.ATTACH not in Replicas.capabilities


def test_one_replica_for_each_device() -> None:
    assert Replicas(Mock(), devices=["0", "1"]).replicas == 2


def test_secrets_of_the_engine_within_are_hidden() -> None:
    spec = EngineSpec(f"{Limited.__module__}:Limited", {"api_key": "kept-secret"})
    for replicas in (Replicas(Limited(api_key="kept-secret"), 1), Replicas(spec, 1)):
        assert "kept-secret" not in repr(replicas)
        assert "kept-secret" not in str(replicas.to_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'engine': the engine to run in each worker"),
        ({"engine": Mock()}, "needs the option 'replicas', or 'devices'"),
        ({"engine": Mock(), "replicas": 0}, "replicas, the number of workers, must be an int"),
        ({"engine": Mock(), "replicas": 2, "devices": ["0"]}, "2 workers need 2 devices"),
        ({"engine": "Mock", "replicas": 2}, "option 'engine' of engine Replicas"),
        ({"engine": Replicas(Mock(), 2), "replicas": 2}, "multiply their numbers"),
        ({"engine": Mock(), "replicas": 2, "request_timeout": 0.0}, "must be above 0"),
        (
            {"engine": Limited(processes=1), "replicas": 2},
            r"engine Limited may be built in at most 1 process\(es\).*ask for 1 or fewer",
        ),
        (
            {"engine": Limited(requests=2), "replicas": 3},
            r"engine Limited may have at most 2 request\(s\) in flight.*ask for 2 or fewer",
        ),
        (
            {"engine": EngineSpec(MOCK, {"max_model": 1}), "replicas": 2},
            "engine Mock has no option 'max_model'; did you mean 'max_model_len'",
        ),
    ],
)
def test_misuse_is_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Replicas(**options)


def test_unknown_engine_is_reported() -> None:
    with pytest.raises(UnknownEngineError, match="no engine 'NoSuchEngine' is installed"):
        Replicas(EngineSpec("NoSuchEngine"), 2)
