"""Actors on two nodes: killed, poisoned, lost with their node, and no request lost or repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
)
from evalution_ray import RayReplicas

MODEL = Model("mock")
REQUESTS = 10_000

Build = Callable[..., Any]


@pytest.fixture
def build(cluster: Any, engines: Any) -> Iterator[Build]:
    built: list[Any] = []

    def start(engine: Any, replicas: int = 2, **options: Any) -> Any:
        built.append(RayReplicas(engine, replicas, **options).build(MODEL))
        return built[-1]

    yield start
    for session in built:
        session.close()


def ask(number: int, *, poison: bool = False) -> GenerationRequest:
    return GenerationRequest(f"{number} {'poison' if poison else ''}", max_new_tokens=2)


def builders(folder: Path) -> list[tuple[int, str]]:
    """The process and node of each actor that has built its session."""
    found = [path.name.partition("-") for path in folder.iterdir()]
    return [(int(pid), node) for pid, _, node in found]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_ten_kills_of_actors_cost_no_answer(build: Build, engines: Any, tmp_path: Path) -> None:
    session = build(engines.Troubled(str(tmp_path)))
    found: list[tuple[int, Any]] = []
    killed: set[int] = set()
    for pair in session.generate_continuous((n, ask(n)) for n in range(REQUESTS)):
        found.append(pair)
        if len(killed) < 10 and len(found) >= 800 * len(killed):
            living = [pid for pid, _ in builders(tmp_path) if pid not in killed and is_running(pid)]
            if living:
                os.kill(living[-1], signal.SIGKILL)
                killed.add(living[-1])
    assert len(killed) == 10
    assert sorted(key for key, _ in found) == list(range(REQUESTS))
    assert not [answer for _, answer in found if isinstance(answer, RequestFailure)]


@pytest.mark.slow
def test_lost_node_is_replaced_by_an_added_one(
    build: Build, cluster: Any, engines: Any, tmp_path: Path, wait_until: Any
) -> None:
    session = build(engines.Troubled(str(tmp_path)))
    assert len({node for _, node in builders(tmp_path)}) == 2, "spread over the nodes"
    found: list[tuple[int, Any]] = []
    for pair in session.generate_continuous((n, ask(n)) for n in range(REQUESTS)):
        found.append(pair)
        if len(found) == 2000:
            lost = cluster.remove_second()
            assert lost in {node for _, node in builders(tmp_path)}
        elif len(found) == 5000:
            added = cluster.add_node().node_id
            wait_until(lambda node=added: node in {built for _, built in builders(tmp_path)})
    assert sorted(key for key, _ in found) == list(range(REQUESTS))
    assert not [answer for _, answer in found if isinstance(answer, RequestFailure)]
    assert len(builders(tmp_path)) == 3, "only what was lost was built again"


@pytest.mark.slow
def test_poisoned_request_is_found_and_reported(build: Build, engines: Any) -> None:
    session = build(engines.Troubled())
    asked = ((n, ask(n, poison=n == 77)) for n in range(500))
    found = list(session.generate_continuous(asked))
    assert sorted(key for key, _ in found) == list(range(500))
    failed = {key: answer for key, answer in found if isinstance(answer, RequestFailure)}
    assert failed.keys() == {77}
    error = failed[77].error
    assert isinstance(error, EngineRuntimeError)
    assert "a worker that ran this request alone died: process " in str(error)
    assert str(error).endswith("see Ray's log on that node, twice")
    assert error.in_flight == (77,)


@pytest.mark.slow
def test_hanging_request_is_found_with_its_stack(build: Build, engines: Any) -> None:
    session = build(engines.Troubled(trouble="hang"), 1, request_timeout=6.0)
    asked = ((n, ask(n, poison=n == 1)) for n in range(3))
    found = dict(session.generate_continuous(asked, batch_size=1))
    failed = {key: answer for key, answer in found.items() if isinstance(answer, RequestFailure)}
    assert failed.keys() == {1}
    assert "made no progress for 6 s and was killed, twice" in str(failed[1].error)
    assert "ray_engines.py" in str(failed[1].error.__cause__)


def test_list_calls_are_divided_over_the_actors(build: Build, engines: Any) -> None:
    session = build(engines.Troubled())
    pairs = [LoglikelihoodRequest(f"{n}", "x", metadata={"n": n}) for n in range(9)]
    outputs = session.loglikelihood(pairs)
    assert [output.metadata for output in outputs] == [{"n": n} for n in range(9)]
    described = session.describe_execution()
    assert described["replicas"] == 2
    assert described["replica_resources"] == {"CPU": 1.0}


def test_class_of_the_driver_alone_is_sent_by_value(build: Build, engines: Any) -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(engines)  # as one of a notebook or script does
    try:
        session = build(engines.Troubled(), 1)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(engines)
    assert session.generate([ask(0)])[0].finish_reason == "length"


# what goes wrong before work


def test_more_replicas_than_there_is_room_for_are_refused(build: Build, engines: Any) -> None:
    text = (
        r"the Ray cluster has room for 2 of 3 replicas, each of which takes CPU 1 "
        r"\(node 127\.0\.0\.1: CPU 1, .*; ask for fewer, let each take less"
    )
    with pytest.raises(EngineUnavailableError, match=text):
        build(engines.Troubled(), 3)


def test_occupied_resources_are_waited_for_until_the_deadline(build: Build, engines: Any) -> None:
    build(engines.Troubled(), 2)
    text = "was not started within 3 s: it takes CPU 1, and free in all are CPU 0; wait for others"
    with pytest.raises(EngineUnavailableError, match=text):
        build(engines.Troubled(), 1, start_timeout=3.0)


def test_failed_build_raises_the_engines_own_error(build: Build, engines: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^planted: no such model$"):
        build(engines.Troubled(refuses=True))


def test_engine_that_a_node_lacks_is_reported_with_its_cause(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_here.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock\n\n"
        "@dataclass(slots=True)\nclass Here(Mock):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import engine_of_here  # pyright: ignore[reportMissingImports]

    with pytest.raises(EngineUnavailableError, match="can't import what the engine needs") as shown:
        build(engine_of_here.Here(), 1)
    assert "No module named 'engine_of_here'" in str(shown.value)
    assert "ModuleNotFoundError" in repr(shown.value.__cause__)


def test_environment_that_can_not_be_set_up_is_reported(build: Build, engines: Any) -> None:
    missing = {"working_dir": "/no/such/folder"}
    text = r"with these options: .* is not a valid path.*; look at resources and runtime_env"
    with pytest.raises(EngineUnavailableError, match=text):
        build(engines.Troubled(), 1, runtime_env=missing)


def test_variables_of_the_environment_reach_the_actors(build: Build, engines: Any) -> None:
    session = build(engines.Troubled(), 1, runtime_env={"env_vars": {"EVALUTION_TESTED": "1"}})
    assert session.generate([ask(0)])
    assert session.environment is not None
    assert session.environment.software["runtime"] == "1", "that of the node, not of the driver"


@pytest.mark.slow
def test_actor_out_of_memory_is_reported_with_its_node(
    build: Build, cluster: Any, engines: Any
) -> None:
    node = cluster.add_tight_node()
    text = r"was killed by Ray, since node 127\.0\.0\.1 ran out of memory \(\S+ used / \S+ limit\)"

    def ask_until_it_is_killed() -> None:
        session = build(engines.Troubled(), 1, num_cpus=0, resources={"tight": 1}, restarts=0)
        while True:  # it may be built before the node looks at its memory
            session.generate([GenerationRequest("a", max_new_tokens=2)])

    try:
        with pytest.raises(EngineRuntimeError, match=text):
            ask_until_it_is_killed()
    finally:
        cluster.remove(node)


def test_another_cluster_than_the_connected_one_is_refused(cluster: Any, engines: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"but this process is connected to 127\.0\.0\.1:"):
        RayReplicas(engines.Troubled(), 1, "127.0.0.1:1").build(MODEL)


def test_connection_that_was_found_is_left_alone(cluster: Any, build: Build, engines: Any) -> None:
    build(engines.Troubled(), 1, address=cluster.address).close()
    assert cluster.ray.is_initialized()
