"""Sessions on the fake runtime: failures, refusals, batches, and the end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_reference import Reference
from evalution_tensorrt_llm import TensorRTLLM

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

TINY = Model("builtin:tiny")
BEFORE, AFTER = "1.2.1", "1.3.0rc11"
BOTH = pytest.mark.parametrize("release", [BEFORE, AFTER])
PAIR = LoglikelihoodRequest("The red cat sleeps in the park.", " The dog sees it.")
LONG = GenerationRequest("a", max_new_tokens=400, ignore_eos=True)


def engine(**options: Any) -> TensorRTLLM:
    return TensorRTLLM(dtype="float32", max_batch_size=8, **options)


def find_executor(session: Any) -> Any:
    return session._requests._executor


@BOTH
def test_dead_executor_names_requests_in_flight(installed: Any, release: str) -> None:
    installed(release)
    session = engine().build(TINY)
    stream = session.stream([(key, LONG) for key in ("x", "y")])
    next(stream)
    find_executor(session)._die(OSError("worker 0 was killed"))
    with pytest.raises(EngineRuntimeError, match="worker 0 was killed") as dead:
        list(stream)
    assert dead.value.in_flight
    assert set(dead.value.in_flight) <= {"x", "y"}
    with pytest.raises(EngineRuntimeError, match="has shut down"):
        session.generate([GenerationRequest("a", max_new_tokens=2)])
    with pytest.raises(EngineRuntimeError, match="has shut down"):
        session.loglikelihood([PAIR])
    session.close()


def test_error_of_one_request_fails_it_alone(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(AFTER)
    step = fake.worker.Worker._take

    def failing(self: Any, sequence: Any, hidden: Any) -> None:
        if sequence.limit == 13 and sequence in self._running:
            self._running.remove(sequence)
            sequence.send(fake.worker.Response(error="no room in the cache"))
        else:
            step(self, sequence, hidden)

    monkeypatch.setattr(fake.worker.Worker, "_take", failing)
    requests = [
        (key, GenerationRequest("a", max_new_tokens=limit, ignore_eos=True))
        for key, limit in (("poor", 13), ("3", 3), ("4", 4))
    ]
    with engine().build(TINY) as session:
        found: dict[str, Any] = dict(session.generate_continuous(requests))
    failure = found.pop("poor")
    assert isinstance(failure, RequestFailure)
    assert "TensorRT-LLM failed the request: no room in the cache" in str(failure.error)
    lengths = {key: output.completion_tokens for key, output in found.items()}
    assert lengths == {"3": 3, "4": 4}


@pytest.mark.parametrize("continuous", [True, False])
@BOTH
def test_refused_value_fails_its_request_alone(
    installed: Any, release: str, continuous: bool
) -> None:
    installed(release)
    hot = GenerationRequest("a", max_new_tokens=2, do_sample=True, temperature=3.0)
    cold = GenerationRequest("a", max_new_tokens=2)
    with engine(continuous_batching=continuous).build(TINY) as session:
        found = dict(session.generate_continuous([("hot", hot), ("cold", cold)]))
    failure = found["hot"]
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, InvalidRequestError)
    assert "TensorRT-LLM refuses the request: require temperature" in str(failure.error)
    assert not isinstance(found["cold"], RequestFailure)


@pytest.mark.parametrize("continuous", [True, False])
def test_request_refused_on_submission_fails_alone(
    installed: Any, continuous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(AFTER)
    send = fake.LLM.generate_async

    def picky(self: Any, inputs: Any, params: Any = None, **rest: Any) -> Any:
        if params.max_tokens == 13:
            raise fake.results.RequestError("no 13")
        return send(self, inputs, params, **rest)

    monkeypatch.setattr(fake.LLM, "generate_async", picky)
    requests = [(at, GenerationRequest("a", max_new_tokens=at)) for at in (3, 13, 4)]
    with engine(continuous_batching=continuous).build(TINY) as session:
        found = dict(session.generate_continuous(requests))
    failure = found[13]
    assert isinstance(failure, RequestFailure)
    assert "TensorRT-LLM refuses the request: no 13" in str(failure.error)
    assert [isinstance(found[at], RequestFailure) for at in (3, 4)] == [False, False]


def test_closed_stream_leaves_no_request_at_the_runtime(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(AFTER)
    with engine().build(TINY) as session:
        executor = find_executor(session)
        aborted: list[int] = []
        abort = executor.abort_request
        monkeypatch.setattr(
            executor, "abort_request", lambda number: (aborted.append(number), abort(number))
        )
        stream: Any = session.stream([(at, LONG) for at in range(9)])
        next(stream)
        stream.close()
        session.gc()
        assert session.requests_in_flight == 0
        assert executor._worker.unfinished == 0
        assert aborted


def test_aborted_request_that_does_not_end_kills_the_session(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(AFTER)
    monkeypatch.setattr("evalution_tensorrt_llm.requests._GRACE_S", 0.05)
    with engine().build(TINY) as session:
        worker = find_executor(session)._worker
        step = worker._step

        def last_step(active: Any) -> None:
            step(active)
            worker._is_over = True

        monkeypatch.setattr(worker, "_step", last_step)
        monkeypatch.setattr(worker, "abort", lambda number: None)
        stream: Any = session.stream([(0, LONG)])
        next(stream)
        stream.close()
        session.gc()
        with pytest.raises(EngineRuntimeError, match="didn't end an aborted request within"):
            session.generate([GenerationRequest("a", max_new_tokens=2)])


def test_free_slot_is_refilled(installed: Any) -> None:
    installed(AFTER)
    with engine().build(TINY) as session:
        assert session.preferred_batch_size == 8
        lengths = [1 + at % 7 for at in range(40)]
        outputs = session.generate(
            [GenerationRequest("The", max_new_tokens=n, ignore_eos=True) for n in lengths]
        )
        assert [output.completion_tokens for output in outputs] == lengths


@BOTH
def test_stop_token_ends_the_text(installed: Any, release: str) -> None:
    installed(release)
    with engine().build(TINY) as session, Reference().build(TINY) as reference:
        request = GenerationRequest("The cat", max_new_tokens=60, logprobs=2)
        (output,), (right,) = session.generate([request]), reference.generate([request])
        assert (output.token_ids, output.finish_reason) == (right.token_ids, right.finish_reason)
        assert output.token_logprobs == pytest.approx(right.token_logprobs, abs=1e-4)


def test_fixed_batches_are_reported(
    installed: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(AFTER)
    with engine(continuous_batching=False).build(TINY) as session:
        described = session.describe_execution()
        assert described["fallback"] == "fixed batches: continuous_batching is off"
        assert described["batching"] == "fixed batches"
        assert not {Capability.CONTINUOUS_BATCHING, Capability.STREAM} & session.capabilities
    assert sum("falls back to fixed batches" in record.message for record in caplog.records) == 1
    monkeypatch.setattr(fake.LLM, "generate", lambda *_, **__: [])
    monkeypatch.delattr(fake.LLM, "generate_async")
    with engine().build(TINY) as session:
        described = session.describe_execution()
        assert described["fallback"] == "fixed batches: this release's LLM has no generate_async"


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        (lambda: GenerationRequest("a", num_beams=2), "num_beams=2"),
        (lambda: GenerationRequest("a", do_sample=True, seed=3), "seed"),
    ],
)
def test_unsupported_requests_are_refused(installed: Any, request_of: Any, what: str) -> None:
    installed(AFTER)
    with engine().build(TINY) as session, pytest.raises(UnsupportedRequestError, match=what):
        session.generate([request_of()])


def test_close_ends_the_runtime_once(installed: Any) -> None:
    installed(AFTER)
    session = engine().build(TINY)
    executor = find_executor(session)
    session.close()
    session.close()
    assert executor.is_shutdown()
    assert not any(thread.name == "fake TensorRT-LLM" for thread in threading.enumerate())


def test_failed_build_ends_the_runtime(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(AFTER)
    monkeypatch.setattr(
        "evalution_enginekit.serving_session.ServingLoop", lambda *_, **__: 1 // 0, raising=True
    )
    with pytest.raises(ZeroDivisionError):
        engine().build(TINY)
    assert not any(thread.name == "fake TensorRT-LLM" for thread in threading.enumerate())


def test_identity_holds_file_hashes(installed: Any) -> None:
    installed(BEFORE)
    with engine().build(TINY) as session:
        identity = session.identity() or {}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(identity)
