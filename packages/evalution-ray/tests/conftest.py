"""A cluster of two nodes on this machine, started once and shared by the tests that need one."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# Read by Ray when it is imported. Without a token of the tests' own, it writes one into the home
# directory; the next has it listen on 127.0.0.1 alone. Under `uv run`, it would copy the repository
# to each node and start every worker by `uv run` there, which takes longer than it waits.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ.pop("RAY_ADDRESS", None)
# Nodes inherit it, and so find the engines of the tests.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

_LITTLE = 80 << 20
"""Bytes of a node's object store, in which no test puts much."""
_WAIT_S = 240.0
"""Longest wait for anything that happens by itself; a busy machine takes many times as long."""
_START_S = 100.0
_STARTS = 2


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Returns once a condition holds, or fails."""

    def wait(condition: Callable[[], object]) -> None:
        patience = threading.Event()
        end = time.monotonic() + _WAIT_S
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            patience.wait(0.05)

    return wait


@pytest.fixture(scope="session", autouse=True)
def _patient_starts() -> Iterator[None]:
    """Give a node of this process the time that it takes: Ray itself gives it 30 seconds."""
    from ray._private import services

    look_up = services.get_node

    def wait_for_node(gcs_address: str, node_id: str) -> Any:
        patience = threading.Event()
        end = time.monotonic() + _START_S
        while True:
            try:
                return look_up(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            patience.wait(0.2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", wait_for_node)
        yield


class TwoNodes:
    """A cluster of two nodes of one CPU each, to which this process is connected."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.ray: Any = ray
        self.cluster: Any = Cluster()
        try:
            # Without the processes that no test asks anything of.
            self._start(include_dashboard=False, include_log_monitor=False, no_monitor=True)
            self.second = self.add_node()
            self.address: str = self.cluster.address
            ray.init(address=self.address, logging_level=logging.ERROR, log_to_driver=False)
        except BaseException:
            self.stop()
            raise

    def _start(self, **options: Any) -> Any:
        options = {"num_cpus": 1, "object_store_memory": _LITTLE, **options}
        for _ in range(_STARTS - 1):
            try:
                return self.cluster.add_node(**options)
            except Exception as error:  # noqa: BLE001 - Ray raises it bare where a start fails
                logging.getLogger(__name__).warning("a node is started once more: %s", error)
        return self.cluster.add_node(**options)

    def add_node(self) -> Any:
        self.second = self._start()
        return self.second

    def add_tight_node(self) -> Any:
        """One of another kind, `tight`, which takes itself for out of memory all the time."""
        return self._start(
            num_cpus=0,
            resources={"tight": 1},
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
