"""A cluster of two nodes on this machine, started once and shared by the tests that need one."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# Read by Ray when it is imported. Without a token of the tests' own, it writes one into the home
# directory; the second has it listen on 127.0.0.1 alone.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ.pop("RAY_ADDRESS", None)
# Nodes inherit it, and so find the engines of the tests.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

_LITTLE = 80 << 20
"""Bytes of a node's object store, in which no test puts much."""


class TwoNodes:
    """A cluster of two nodes of one CPU each, to which this process is connected."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.ray: Any = ray
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _LITTLE}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            self.second = self.add_node()
            self.address: str = self.cluster.address
            ray.init(address=self.address, logging_level=logging.ERROR, log_to_driver=False)
        except BaseException:
            self.stop()
            raise

    def add_node(self) -> Any:
        self.second = self.cluster.add_node(num_cpus=1, object_store_memory=_LITTLE)
        return self.second

    def add_tight_node(self) -> Any:
        """One of another kind, `tight`, which takes itself for out of memory all the time."""
        return self.cluster.add_node(
            num_cpus=0,
            resources={"tight": 1},
            object_store_memory=_LITTLE,
            env_vars={"RAY_memory_usage_threshold": "0.01"},
        )

    def remove(self, node: Any) -> None:
        self.cluster.remove_node(node)

    def remove_second(self) -> str:
        """Take the node away that isn't the driver's; returns its id."""
        node = self.second
        self.cluster.remove_node(node)
        return node.node_id

    def stop(self) -> None:
        self.ray.shutdown()
        self.cluster.shutdown()


class Clusters:
    """At most one cluster at a time: a second one would be half a gigabyte more."""

    def __init__(self) -> None:
        self.running: TwoNodes | None = None

    def two_nodes(self) -> TwoNodes:
        self.running = self.running or TwoNodes()
        return self.running

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    yield clusters
    clusters.stop()


@pytest.fixture
def cluster(clusters: Clusters) -> TwoNodes:
    return clusters.two_nodes()


@pytest.fixture
def no_cluster(clusters: Clusters) -> None:
    clusters.stop()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    sys.modules.pop("ray_engines", None)
    return import_module("ray_engines")
