"""RayReplicas as configuration: its options, what is refused, and what a cluster has room for."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.replicas import Replicas
from evalution_core import Capability, ConfigurationError, EngineSpec
from evalution_core.options import numeric_options
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock
from evalution_ray import RayReplicas, connection
from evalution_ray.engine import count_actors, format_nodes, format_resources

MOCK = "evalution_enginekit.mock:Mock"


class ConnectedRay:
    """Ray in a process that somebody has connected to a cluster."""

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="10.0.0.7:6379")


def test_address_that_is_left_out_is_the_cluster_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "load_ray", ConnectedRay)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with connection.connect(None, log_to_driver=False) as ray:
        assert ray.is_initialized()
    refused = pytest.raises(ConfigurationError, match=r"connected to 10\.0\.0\.7:6379 already")
    with refused, connection.connect("head:6379", log_to_driver=False):
        raise AssertionError("it is another cluster")


def test_inner_engine_may_be_given_in_any_form() -> None:
    made = RayReplicas(Mock(99), 2)
    assert made == RayReplicas(EngineSpec(MOCK, {"max_model_len": 99}), 2)
    written = {"engine": {"type": MOCK, "max_model_len": 99}, "replicas": 2}
    assert made == RayReplicas.from_options(written)
    assert made.inner == Mock(99)
    assert made.capabilities == MOCK_CAPABILITIES - {Capability.DISTRIBUTIONS}
    assert pickle.loads(pickle.dumps(made)) == made


def test_placement_options_are_not_part_of_a_runs_identity() -> None:
    here = RayReplicas(Mock(), 2)
    there = RayReplicas(Mock(), 9, "auto", num_gpus=1, resources={"big": 1}, restarts=2)
    assert numeric_options(here).keys() == {"engine"}
    assert {**here.to_dict(), "engine": None}.keys() == {**there.to_dict(), "engine": None}.keys()


def test_runtime_environment_is_redacted() -> None:
    environment = {"env_vars": {"SERVICE": "kept-secret-4711"}}
    made = RayReplicas(Mock(), 2, runtime_env=environment)
    assert "kept-secret" not in repr(made)
    assert "kept-secret" not in str(made.to_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "engine RayReplicas needs the option 'engine'"),
        ({"engine": Mock()}, "engine RayReplicas needs the option 'replicas'"),
        ({"engine": Mock(), "replicas": 0}, "replicas, the number of workers, must be an int"),
        ({"engine": Mock(), "replicas": 1, "num_cpu": 1}, "did you mean 'num_cpus'"),
        ({"engine": Mock(), "replicas": 1, "num_cpus": -1}, "'num_cpus'.* at least 0.0, got -1"),
        (
            {"engine": Mock(), "replicas": 1, "num_cpus": math.nan},
            "'num_cpus'.* finite number, got 'nan'",
        ),
        (
            {"engine": Mock(), "replicas": 1, "num_gpus": math.inf},
            "'num_gpus'.* finite number, got 'inf'",
        ),
        ({"engine": Mock(), "replicas": 1, "num_gpus": 1.5}, "'num_gpus'.*share of one or a whole"),
        ({"engine": Mock(), "replicas": 1, "resources": {"big": math.inf}}, "got 'big': inf"),
        ({"engine": "Mock", "replicas": 1}, r"must be an engine, as in RayReplicas\(engine=VLLM"),
        ({"engine": Mock, "replicas": 1}, r"must be an engine, .*, got the class Mock"),
        ({"engine": Mock(), "replicas": 1, "num_cpus": True}, "'num_cpus'.*number, got True"),
        ({"engine": Mock(), "replicas": 1, "num_cpus": 0}, "needs one of num_cpus, num_gpus"),
        ({"engine": Mock(), "replicas": 1, "placement": "PACK"}, "'SPREAD' or 'DEFAULT'"),
        ({"engine": Mock(), "replicas": 1, "resources": {"GPU": 1}}, "have the options num_cpus"),
        ({"engine": Mock(), "replicas": 1, "resources": {"big": 0}}, "got 'big': 0"),
        ({"engine": Mock(), "replicas": 1, "start_timeout": 0}, "'start_timeout'.*above 0"),
        (
            {"engine": Mock(), "replicas": 1, "request_timeout": 0},
            "request_timeout.*must be above 0",
        ),
        ({"engine": RayReplicas(Mock(), 2), "replicas": 2}, "is another RayReplicas; replicas of"),
        ({"engine": Replicas(Mock(), 2), "replicas": 2}, "is another Replicas; replicas of"),
    ],
)
def test_invalid_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RayReplicas(**options)


def test_needed_resources_have_rays_names() -> None:
    made = RayReplicas(Mock(), 1, num_cpus=0, num_gpus=0.5, memory=2**30, resources={"big": 2})
    assert made.need == {"GPU": 0.5, "memory": 2**30, "big": 2}


def node(address: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "NodeManagerAddress": address, "Resources": resources}


def test_capacity_is_counted_per_node() -> None:
    nodes = [node("a", CPU=3.0, GPU=1.0), node("b", CPU=3.0), node("c", alive=False, CPU=64.0)]
    assert count_actors(nodes, {"CPU": 2.0}) == 2, "two halves of nodes are no room"
    assert count_actors(nodes, {"CPU": 1.0, "GPU": 0.5}) == 2
    assert count_actors(nodes, {"big": 1.0}) == 0


@given(st.integers(1, 50), st.integers(1, 20))
def test_fractional_actors_fill_a_node(cpus: int, parts: int) -> None:
    assert count_actors([node("a", CPU=float(cpus))], {"CPU": 1 / parts}) == cpus * parts


def test_resources_are_described_without_rays_own() -> None:
    nodes = [node("10.0.0.1", **{"CPU": 2.0, "memory": 3 * 2**30, "node:10.0.0.1": 1.0})]
    assert format_nodes(nodes) == "node 10.0.0.1: CPU 2, memory 3.0 GiB"
    assert format_resources({}) == "none"
