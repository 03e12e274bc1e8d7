"""The engine core in a process of its own, and its end, expected and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    EngineUnavailableError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
)
from evalution_vllm import VLLM

psutil = pytest.importorskip("psutil", reason="psutil is not installed")
pytest.importorskip("vllm", reason="vllm is not installed")
pytestmark = pytest.mark.slow

APART = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=4)


def cores() -> list[Any]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "VLLM" in child.name()
    ]


@pytest.fixture
def session() -> Iterator[Any]:
    with APART.build(Model("builtin:tiny")) as session:
        assert cores()
        yield session
    assert cores() == []


def test_killed_core_is_an_error_that_names_requests_in_flight(session: Any) -> None:
    (score,) = session.loglikelihood([LoglikelihoodRequest("1+1=", "2")])
    assert score.logprob < 0
    assert session.describe_execution()["multiprocessing"] is True
    long = GenerationRequest("a", max_new_tokens=500, ignore_eos=True)
    stream = session.stream([(key, long) for key in ("x", "y")])
    next(stream)
    for core in cores():
        core.kill()
    with pytest.raises(EngineRuntimeError, match=r"engine core ended|EngineDead") as dead:
        list(stream)
    assert set(dead.value.in_flight) <= {"x", "y"}
    assert dead.value.in_flight
    with pytest.raises(EngineRuntimeError, match=r"engine core|EngineDead|EngineCore"):
        session.generate([GenerationRequest("a", max_new_tokens=2)])


def test_core_that_does_not_start_is_no_fault_of_the_configuration() -> None:
    with pytest.raises(EngineUnavailableError) as refused:
        VLLM(enforce_eager=True, max_num_seqs=4, kv_cache_memory_bytes=4096).build(
            Model("builtin:tiny")
        )
    assert str(refused.value).startswith("vLLM's processes didn't start for 'builtin:tiny': ")
    assert str(refused.value).endswith(
        "Their output is on standard error; if memory ran out, set max_model_len, "
        "kv_cache_memory_bytes, gpu_memory_utilization, tensor_parallel_size or quantization"
    )
