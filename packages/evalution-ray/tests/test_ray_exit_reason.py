"""Ray's words for the end of an actor, and what is made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evalution_core import EngineUnavailableError
from evalution_ray.exit_reason import describe_exit, find_build_failure


class ActorDiedError(Exception):
    actor_init_failed = False


class ActorUnavailableError(Exception):
    pass


class OutOfMemoryError(Exception):
    pass


class RuntimeEnvSetupError(Exception):
    pass


RAY: Any = SimpleNamespace(
    exceptions=SimpleNamespace(
        ActorDiedError=ActorDiedError,
        ActorUnavailableError=ActorUnavailableError,
        OutOfMemoryError=OutOfMemoryError,
        RuntimeEnvSetupError=RuntimeEnvSetupError,
    )
)
HEAD = "The actor died unexpectedly before finishing this task.\n\tpid: 4711\n\tip: 10.0.0.3\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ActorDiedError(
                f"{HEAD}The actor died because its node has died. Node Id: 3f91\n"
                "\tthe actor's node was terminated expectedly: received SIGTERM"
            ),
            "was lost with node 10.0.0.3, terminated expectedly: received SIGTERM",
        ),
        (
            ActorDiedError(
                f"{HEAD}The actor is dead because its worker process has died. Worker exit type: "
                "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits"
            ),
            "died: process 4711 on node 10.0.0.3 was killed, ran out of memory or crashed; "
            "see Ray's log on that node",
        ),
        (
            OutOfMemoryError(
                "1 worker(s) were killed due to the node running low on memory. Memory on the node "
                "(IP: 10.0.0.3, ID: 75) was 22GB used / 23GB limit (0.95)\nOOM kill reason"
            ),
            "was killed by Ray, since node 10.0.0.3 ran out of memory (22GB used / 23GB limit)",
        ),
        (
            ActorUnavailableError("The actor d4 is unavailable: Socket closed rpc_code: 14."),
            "can't be reached any more: its node, or the network to it, is gone",
        ),
        (ValueError("planted: \n\x1b[36mlast line\x1b[39m\n"), "ended: last line"),
    ],
)
def test_end_of_an_actor_is_described_by_its_cause(error: Exception, reason: str) -> None:
    assert describe_exit(error, RAY) == reason


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ActorDiedError(
                "The actor with name SessionActor failed to import on the worker.\n"
                "ModuleNotFoundError: No module named 'evalution_ray'"
            ),
            "can't start an actor: ModuleNotFoundError: No module named 'evalution_ray'; install",
        ),
        (RuntimeEnvSetupError("Failed.\nno such package"), "'runtime_env' can't be .*: no such"),
        (ValueError("Use the 'memory' keyword"), "these options: Use the 'memory' keyword; look"),
    ],
)
def test_actor_that_can_not_start_is_a_build_failure_with_its_cause(
    error: Exception, message: str
) -> None:
    failure = find_build_failure(error, RAY)
    assert isinstance(failure, EngineUnavailableError)
    assert failure.__cause__ is error
    with pytest.raises(EngineUnavailableError, match=message):
        raise failure


@pytest.mark.parametrize("kind", [ActorDiedError, ActorUnavailableError, OutOfMemoryError])
def test_end_of_a_running_actor_is_no_build_failure(kind: type[Exception]) -> None:
    assert find_build_failure(kind(HEAD), RAY) is None
