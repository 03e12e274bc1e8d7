"""What a session does with the fake runtime: scores, caches, failures and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_reference import Reference
from evalution_tensorrt_llm import TensorRTLLM
from evalution_tensorrt_llm.releases import Reading, reading

TINY = Model("builtin:tiny")
BEFORE, AFTER = "1.2.1", "1.3.0rc11"
BOTH = pytest.mark.parametrize("release", [BEFORE, AFTER])
CONTEXT = "The red cat sleeps in the park every morning. " * 6
ENDINGS = [" The dog sees it.", " The dog likes the red house.", " One plus two is three."]
PAIRS = [LoglikelihoodRequest(CONTEXT, ending) for ending in ENDINGS]
LONG = GenerationRequest("a", max_new_tokens=400, ignore_eos=True)


def engine(**options: Any) -> TensorRTLLM:
    return TensorRTLLM(dtype="float32", max_batch_size=8, **options)


def executor_of(session: Any) -> Any:
    return session._loaded.llm._executor


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    with Reference(dtype="float64").build(TINY) as session:
        return [list(output.token_logprobs or []) for output in session.loglikelihood(PAIRS)]


@pytest.mark.parametrize(
    ("release", "how"),
    [
        ("1.2.0", Reading.CONTEXT_LOGITS),
        ("1.2.1", Reading.CONTEXT_LOGITS),
        ("1.3.0rc5.post2", Reading.CONTEXT_LOGITS),
        ("1.3.0rc10", Reading.CONTEXT_LOGITS),
        ("1.3.0rc11", Reading.PROMPT_LOGPROBS),
        ("1.3.0rc12.post1", Reading.PROMPT_LOGPROBS),
        ("1.3.0", Reading.PROMPT_LOGPROBS),
    ],
)
def test_the_release_decides_what_scores_are_read_from(release: str, how: Reading) -> None:
    assert reading(release) is how


@BOTH
def test_scores_are_those_of_the_reference(
    installed: Any, release: str, expected: list[list[float]]
) -> None:
    installed(release)
    with engine().build(TINY) as session:
        assert session.check().outcome == "passed"
        assert session.describe_execution()["scores_from"] == str(reading(release))
        for output, values in zip(session.loglikelihood(PAIRS), expected, strict=True):
            assert output.token_logprobs == pytest.approx(values, abs=1e-4)


@BOTH
def test_reused_blocks_stay_out_of_what_is_scored(
    installed: Any, release: str, expected: list[list[float]]
) -> None:
    installed(release)
    with engine(enable_block_reuse=True).build(TINY) as session:
        assert session.describe_execution()["block_reuse"] is True
        for _ in range(2):
            for output, values in zip(session.loglikelihood(PAIRS), expected, strict=True):
                assert output.token_logprobs == pytest.approx(values, abs=1e-4)
                assert output.runtime == {"cached_tokens": 0}
        prompt = GenerationRequest(CONTEXT, max_new_tokens=2)
        session.generate([prompt])
        assert (session.generate([prompt])[0].runtime or {})["cached_tokens"] >= 64


@BOTH
def test_the_longest_window_fits_into_the_runtime(installed: Any, release: str) -> None:
    installed(release)
    with engine().build(TINY) as session:
        # The model has 512 positions; the runtime cuts longer sequences down to them.
        assert session.max_model_len == 512 - reading(release).spare
        text = CONTEXT * 20
        (whole,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text)])
        (cut,) = session.loglikelihood([LoglikelihoodRequest(text, ENDINGS[0])])
        assert whole.token_count > 512
        assert cut.truncated_tokens
    with engine(max_model_len=64, max_num_tokens=66).build(TINY) as small:
        assert small.max_model_len == 64
        (cut,) = small.loglikelihood([LoglikelihoodRequest(text, ENDINGS[0])])
        assert cut.truncated_tokens


@pytest.mark.parametrize(("release", "requests"), [(BEFORE, 1), (AFTER, 3)])
def test_choices_of_one_token_are_one_request_where_rows_have_all_tokens(
    installed: Any, release: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(release)
    with engine().build(TINY) as session:
        session.check()
        (likeliest,) = session.generate([GenerationRequest("The", max_new_tokens=1)])
        runtime: Any = session._loop._runtime
        sent: list[Any] = []
        score = runtime.score
        monkeypatch.setattr(
            runtime, "score", lambda name, group: (sent.append(group), score(name, group))
        )
        choices = [likeliest.text, " dog", " park"]
        found = session.loglikelihood([LoglikelihoodRequest("The", one) for one in choices])
        assert [output.is_greedy for output in found] == [True, False, False]
        assert len(sent) == requests


@pytest.mark.parametrize(
    ("release", "lie", "told"),
    [
        (BEFORE, "shifted", "failed its self check and refuses to score"),
        (BEFORE, "zero", "failed its self check and refuses to score: all log-probabilities"),
        (BEFORE, "missing", "computed rows for 0 of"),
        (AFTER, "shifted", "failed its self check and refuses to score"),
        (AFTER, "zero", "failed its self check and refuses to score: all log-probabilities are 0"),
        (AFTER, "missing", "computed rows for 0 of"),
    ],
)
def test_a_runtime_that_tells_something_else_never_scores(
    installed: Any, release: str, lie: str, told: str
) -> None:
    installed(release, lie)
    with engine().build(TINY) as session:
        for _ in range(2):
            with pytest.raises(EngineRuntimeError) as refused:
                session.loglikelihood(PAIRS)
            assert told in str(refused.value)
        assert session.generate([GenerationRequest("a", max_new_tokens=2)])[0].completion_tokens


def test_a_release_that_tells_of_another_token_is_noticed(installed: Any) -> None:
    fake = installed(AFTER)
    fake.results.RELEASE = fake.results.Version("1.3.0rc9")
    with engine().build(TINY) as session, pytest.raises(EngineRuntimeError) as refused:
        session.loglikelihood(PAIRS)
    assert "prompt log-probabilities are shifted: token" in str(refused.value)


@BOTH
def test_a_dead_executor_is_told_with_what_was_in_flight(installed: Any, release: str) -> None:
    installed(release)
    session = engine().build(TINY)
    stream = session.stream([(key, LONG) for key in ("x", "y")])
    next(stream)
    executor_of(session)._die(OSError("worker 0 was killed"))
    with pytest.raises(EngineRuntimeError, match="worker 0 was killed") as dead:
        list(stream)
    assert dead.value.in_flight
    assert set(dead.value.in_flight) <= {"x", "y"}
    with pytest.raises(EngineRuntimeError, match="has shut down"):
        session.generate([GenerationRequest("a", max_new_tokens=2)])
    with pytest.raises(EngineRuntimeError, match="has shut down"):
        session.loglikelihood(PAIRS)
    session.close()


def test_an_error_of_one_request_costs_that_request_alone(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(AFTER)
    step = fake.worker.Worker._take

    def failing(self: Any, sequence: Any, hidden: Any) -> None:
        if sequence.limit == 13 and sequence in self._running:
            self._running.remove(sequence)
            sequence.tell(fake.worker.Response(error="no room in the cache"))
        else:
            step(self, sequence, hidden)

    monkeypatch.setattr(fake.worker.Worker, "_take", failing)
    requests = [("poor", GenerationRequest("a", max_new_tokens=13))]
    requests += [(str(at), GenerationRequest("a", max_new_tokens=at)) for at in (3, 4)]
    with engine().build(TINY) as session:
        found = dict(session.generate_continuous(requests))
    failure = found.pop("poor")
    assert isinstance(failure, RequestFailure)
    assert "TensorRT-LLM failed the request: no room in the cache" in str(failure.error)
    assert not any(isinstance(output, RequestFailure) for output in found.values())


@pytest.mark.parametrize("continuous", [True, False])
@BOTH
def test_a_value_that_is_refused_costs_that_request_alone(
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
def test_a_request_that_is_refused_when_it_is_sent_costs_that_request_alone(
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


def test_nothing_is_left_at_the_runtime_after_an_early_close(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(AFTER)
    with engine().build(TINY) as session:
        executor = executor_of(session)
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


def test_an_aborted_request_that_does_not_end_is_a_dead_runtime(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(AFTER)
    monkeypatch.setattr("evalution_tensorrt_llm.requests._GRACE_S", 0.05)
    with engine().build(TINY) as session:
        worker = executor_of(session)._worker
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


def test_a_prompt_takes_a_slot_as_soon_as_one_is_free(installed: Any) -> None:
    installed(AFTER)
    with engine().build(TINY) as session:
        assert session.preferred_batch_size == 8
        lengths = [1 + at % 7 for at in range(40)]
        outputs = session.generate(
            [GenerationRequest("The", max_new_tokens=n, ignore_eos=True) for n in lengths]
        )
        assert [output.completion_tokens for output in outputs] == lengths


@BOTH
def test_a_stop_token_ends_the_text_and_is_told(installed: Any, release: str) -> None:
    installed(release)
    with engine().build(TINY) as session, Reference().build(TINY) as reference:
        request = GenerationRequest("The cat", max_new_tokens=60, logprobs=2)
        (output,), (right,) = session.generate([request]), reference.generate([request])
        assert (output.token_ids, output.finish_reason) == (right.token_ids, right.finish_reason)
        assert output.token_logprobs == pytest.approx(right.token_logprobs, abs=1e-4)


def test_fixed_batches_say_so(
    installed: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(AFTER)
    with engine(continuous_batching=False).build(TINY) as session:
        told = session.describe_execution()
        assert told["fallback"] == "fixed batches: continuous_batching is off"
        assert told["batching"] == "fixed batches"
        assert not {Capability.REFILL, Capability.STREAM} & session.capabilities
    assert sum("falls back to fixed batches" in record.message for record in caplog.records) == 1
    monkeypatch.setattr(fake.LLM, "generate", lambda *_, **__: [])
    monkeypatch.delattr(fake.LLM, "generate_async")
    with engine().build(TINY) as session:
        told = session.describe_execution()
        assert told["fallback"] == "fixed batches: this release's LLM has no generate_async"


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        (lambda: GenerationRequest("a", num_beams=2), "num_beams=2"),
        (lambda: GenerationRequest("a", do_sample=True, seed=3), "seed"),
    ],
)
def test_what_the_runtime_cannot_do_is_refused_before_any_work(
    installed: Any, request_of: Any, what: str
) -> None:
    installed(AFTER)
    with engine().build(TINY) as session, pytest.raises(UnsupportedRequestError, match=what):
        session.generate([request_of()])


def test_closing_ends_the_runtime_once(installed: Any) -> None:
    installed(AFTER)
    session = engine().build(TINY)
    executor = executor_of(session)
    session.close()
    session.close()
    assert executor.is_shutdown()
    assert not any(thread.name == "fake TensorRT-LLM" for thread in threading.enumerate())


def test_a_session_that_cannot_be_made_ends_the_runtime(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(AFTER)
    monkeypatch.setattr(
        "evalution_tensorrt_llm.session.ServingLoop", lambda *_, **__: 1 // 0, raising=True
    )
    with pytest.raises(ZeroDivisionError):
        engine().build(TINY)
    assert not any(thread.name == "fake TensorRT-LLM" for thread in threading.enumerate())


def test_identity_tells_the_files(installed: Any) -> None:
    installed(BEFORE)
    with engine().build(TINY) as session:
        told = session.identity() or {}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(told)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not any(thread.name == "fake TensorRT-LLM" for thread in threading.enumerate())
