"""A cluster of this machine alone, one that `ray start` made, and addresses where none is."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    Model,
)
from evalution_enginekit.mock import Mock
from evalution_ray import RayReplicas

MODEL = Model("mock")
WAIT_S = 240
STARTED = "Ray runtime started"
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listening_addresses(process: psutil.Process) -> set[str]:
    try:
        connections = process.net_connections(kind="inet")
    except psutil.NoSuchProcess:  # Ray ends helpers of its own at any time
        return set()
    return {found.laddr.ip for found in connections if found.status == psutil.CONN_LISTEN}


@pytest.mark.slow
@pytest.mark.usefixtures("no_cluster")
def test_cluster_is_started_shared_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray._private.runtime_env import uv_runtime_env_hook

    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    monkeypatch.setattr(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", True)
    # Under `uv run`, it would start the actors by that command.
    monkeypatch.setattr(ray._private.ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True)
    monkeypatch.setattr(
        uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: pytest.fail("copies the folder")
    )
    before = signal.getsignal(signal.SIGTERM)
    engine = RayReplicas(Mock(), 1, num_cpus=0.1)

    with engine.build(MODEL) as first:
        with engine.build(MODEL):
            pass
        assert first.generate([GenerationRequest("a")])[0].text
        assert signal.getsignal(signal.SIGTERM) is before
        processes = (psutil.Process(), *psutil.Process().children(recursive=True))
        heard = {address for process in processes for address in listening_addresses(process)}
        assert heard
        assert heard <= LOOPBACK
        with pytest.raises(ConfigurationError, match="is connected to a cluster of its own"):
            RayReplicas(Mock(), 1, "127.0.0.1:6379").build(MODEL)
        with pytest.raises(EngineUnavailableError, match="has room for 0 of 1 replicas"):
            RayReplicas(Mock(), 1, num_cpus=4096).build(MODEL)
        assert ray.is_initialized()

    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("no_cluster")
def test_client_drives_actors_too(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    script = Path(__file__).with_name("client_of_ray.py")
    with start_head(tmp_path, wait_until) as address:
        done = subprocess.run(
            [sys.executable, script, address],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1000 answers, 1000 keys, 2 replicas"


@contextmanager
def start_head(folder: Path, wait_until: Callable[..., None]) -> Generator[str]:
    """Yield the address for clients of a cluster that `ray start` made."""
    log = folder / "log"

    def start(client: int) -> subprocess.Popen[bytes]:
        command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block"]
        command += ["--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
        command += [f"--port={free_port()}", f"--ray-client-server-port={client}"]
        with log.open("wb") as output:
            head = subprocess.Popen(command, stdout=output, stderr=output)
        # The port for clients is open before the node can serve them.
        wait_until(lambda: STARTED in log.read_text() or head.poll() is not None)
        return head

    port = free_port()
    head = start(port)
    if head.poll() is not None:  # too slow for Ray, or a port was taken meanwhile
        port = free_port()
        head = start(port)
    try:
        assert head.poll() is None, log.read_text()
        wait_until(lambda: is_open(port))
        yield f"ray://127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(WAIT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_address_where_nothing_listens_is_reported(address: str) -> None:
    text = rf"no Ray cluster can be used at '{address}': ConnectionRefusedError.*ray start --head"
    with pytest.raises(EngineUnavailableError, match=text):
        RayReplicas(Mock(), 1, address).build(MODEL)


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("address", ["", "my-cluster", ":6379", "http://127.0.0.1:8265"])
def test_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be 'auto', 'host:port' or 'ray://host"):
        RayReplicas(Mock(), 1, address).build(MODEL)


@pytest.mark.usefixtures("no_cluster")
def test_address_of_the_environment_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(EngineUnavailableError, match=r"at '127.0.0.1:1'.* or unset RAY_ADDRESS"):
        RayReplicas(Mock(), 1).build(MODEL)


@pytest.mark.usefixtures("no_cluster")
def test_malformed_address_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    with pytest.raises(ConfigurationError, match=r"^RAY_ADDRESS must be .*; unset it for a clu"):
        RayReplicas(Mock(), 1).build(MODEL)


@pytest.mark.usefixtures("no_cluster")
def test_unknown_runtime_env_field_is_refused_before_the_start() -> None:
    import ray

    text = "has a field 'env_var' that Ray doesn't know; did you mean 'env_vars'"
    with pytest.raises(ConfigurationError, match=text) as refused:
        RayReplicas(Mock(), 1, runtime_env={"env_var": {"KEY": "kept-secret"}}).build(MODEL)
    assert "kept-secret" not in str(refused.value)
    assert not ray.is_initialized()


def test_version_of_ray_is_reported_without_a_cluster() -> None:
    from importlib.metadata import version

    described: dict[str, Any] = RayReplicas(Mock(), 1).describe_runtime()
    assert described == {"version": f"ray {version('ray')}"}
