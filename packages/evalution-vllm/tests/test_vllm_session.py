"""Sessions on the real engine core, in this process."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalution_core import (
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenPrompt, TokenSpan
from evalution_enginekit.serving import SpanGroup
from evalution_enginekit.serving_session import ServingSession, group_spans
from evalution_vllm import VLLM

torch = pytest.importorskip("torch", reason="torch is not installed")

TINY = Model("builtin:tiny")
CONTEXT = "The red cat sleeps in the park every morning. " * 6
ENDINGS = [" The dog sees it.", " The dog likes the red house.", " One plus two is three."]


def pairs() -> list[LoglikelihoodRequest]:
    return [LoglikelihoodRequest(CONTEXT, ending) for ending in ENDINGS]


def values(outputs: list[Any]) -> list[list[float]]:
    return [output.token_logprobs for output in outputs]


def test_shared_context_is_prefilled_once_and_scores_as_without_the_cache(
    session: ServingSession,
) -> None:
    assert session.describe_execution()["scoring_cache"] == "after the cached prefix"
    session.gc()
    shared = session.loglikelihood(pairs())
    cached = [output.runtime["cached_tokens"] for output in shared if output.runtime]
    assert sorted(cached)[0] == 0
    assert sorted(cached)[1] >= 64
    for pair, output in zip(pairs(), shared, strict=True):
        session.gc()
        (alone,) = session.loglikelihood([pair])
        assert alone.runtime == {"cached_tokens": 0}
        assert alone.token_logprobs == pytest.approx(output.token_logprobs, abs=1e-5)
        assert alone.is_greedy == output.is_greedy


def test_repeated_score_is_recomputed_where_the_cache_has_no_rows(
    session: ServingSession,
) -> None:
    text = CONTEXT + ENDINGS[0]
    late = LoglikelihoodRequest(CONTEXT[:10], text[10:])
    first = session.loglikelihood([late])
    again = session.loglikelihood([late])
    assert values(first)[0] == pytest.approx(values(again)[0], abs=1e-5)
    assert again[0].runtime == {"cached_tokens": 0}
    rolling = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text)] * 2)
    assert rolling[0].token_logprobs == pytest.approx(rolling[1].token_logprobs, abs=1e-5)


def test_one_token_choices_are_one_request(
    session: ServingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.check()  # the first score would run it
    submitted: list[SpanGroup] = []
    runtime: Any = session._requests
    score = runtime.score
    monkeypatch.setattr(
        runtime, "score", lambda name, group: (submitted.append(group), score(name, group))
    )
    (likeliest,) = session.generate([GenerationRequest("The", max_new_tokens=1)])
    choices = [likeliest.text, " dog", " park"]
    found = session.loglikelihood([LoglikelihoodRequest("The", choice) for choice in choices])
    assert [len(group.spans) for group in submitted] == [len(set(choices))]
    assert found[0].is_greedy
    for choice, output in zip(choices, found, strict=True):
        assert output.token_count == 1
        assert output.is_greedy is (choice == likeliest.text)


def test_top_logprobs_are_right_while_other_requests_list_tokens(session: ServingSession) -> None:
    prompts = [GenerationRequest(text, max_new_tokens=24, logprobs=3) for text in ENDINGS]
    alone = session.generate(prompts)
    scored: list[Any] = []
    scorer = threading.Thread(
        target=lambda: scored.extend(session.loglikelihood(pairs() * 8, batch_size=2))
    )
    scorer.start()
    beside = session.generate(prompts)
    while scorer.is_alive():
        beside = session.generate(prompts)
    scorer.join()
    for one, other in zip(alone, beside, strict=True):
        assert one.token_ids == other.token_ids
        assert one.top_logprobs
        for a, b in zip(one.top_logprobs, other.top_logprobs or [], strict=True):
            assert len(b) == 3
            assert a == pytest.approx(b, abs=1e-4)
    assert len(scored) == 24


def test_refused_value_fails_its_request_alone(session: ServingSession) -> None:
    hot = GenerationRequest("a", max_new_tokens=2, do_sample=True, temperature=3.0)
    found = dict(
        session.generate_continuous(
            [("hot", hot), ("cold", GenerationRequest("a", max_new_tokens=2))]
        )
    )
    assert isinstance(found["hot"], RequestFailure)
    assert "vLLM refuses the request: temperature must be in [0, 2], got 3.0" in str(
        found["hot"].error
    )
    assert not isinstance(found["cold"], RequestFailure)


def test_beams_are_refused(session: ServingSession) -> None:
    with pytest.raises(UnsupportedRequestError, match="num_beams=2"):
        session.generate([GenerationRequest("a", num_beams=2)])


def test_closed_stream_leaves_no_request_at_the_engine(session: ServingSession) -> None:
    requests = [
        (at, GenerationRequest("a", max_new_tokens=200, ignore_eos=True)) for at in range(9)
    ]
    stream: Any = session.stream(requests)
    next(stream)
    stream.close()
    session.gc()
    assert session.requests_in_flight == 0
    engine: Any = session._requests
    assert engine._engine.get_num_unfinished_requests() == 0


def test_batch_size_defaults_to_the_schedulers_slots(session: ServingSession) -> None:
    assert session.preferred_batch_size == 16  # of batch_size=None
    outputs = session.generate(
        [GenerationRequest("The", max_new_tokens=1 + at % 7, ignore_eos=True) for at in range(40)]
    )
    assert [output.completion_tokens for output in outputs] == [1 + at % 7 for at in range(40)]


def test_inproc_core_restores_process_state() -> None:
    environment, threads = dict(os.environ), torch.set_num_threads
    random.seed(5)
    torch.manual_seed(5)
    expected = random.Random(5).random()
    here = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=2, multiprocessing=False)
    with here.build(TINY) as session:
        assert dict(os.environ) == environment
        assert torch.set_num_threads is threads
        assert random.random() == expected
        assert torch.initial_seed() == 5
        session.generate([GenerationRequest("a", max_new_tokens=2)])
    session.close()


def test_fixed_batches_give_the_same_numbers_and_are_reported(
    session: ServingSession, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [
        GenerationRequest("The cat", max_new_tokens=9, stop=[" park"]),
        GenerationRequest("One plus", max_new_tokens=5, logprobs=2),
        GenerationRequest("a", max_new_tokens=2, do_sample=True, temperature=3.0),
    ]
    expected = session.generate(prompts[:2])
    batched = VLLM(
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=16,
        multiprocessing=False,
        continuous_batching=False,
    )
    with batched.build(TINY) as other:
        described = other.describe_execution()
        assert described["fallback"] == "fixed batches: continuous_batching is off"
        assert described["batching"] == "fixed batches"
        assert Capability.CONTINUOUS_BATCHING not in other.capabilities
        found = dict(other.generate_continuous(list(enumerate(prompts))))
        for at, output in enumerate(expected):
            assert (found[at].text, found[at].token_ids) == (output.text, output.token_ids)  # pyright: ignore
        assert isinstance(found[2], RequestFailure)
        assert values(other.loglikelihood(pairs())) == [
            pytest.approx(each, abs=1e-5) for each in values(session.loglikelihood(pairs()))
        ]
    assert sum("falls back to fixed batches" in record.message for record in caplog.records) == 1


def test_identity_holds_file_hashes(session: ServingSession) -> None:
    identity = session.identity() or {}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(identity)


def test_checkpoint_without_a_linear_layer_is_refused(engine: VLLM, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "tiny"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError) as refused:
        engine.build(Model(str(folder)))
    assert str(refused.value) == (
        f"the checkpoint {str(folder)!r} lacks 1 weights of a causal model "
        f"(model.layers.1.self_attn.q_proj.weight); its answers would be those of random ones"
    )


def test_window_that_was_not_asked_for_is_fitted_to_the_cache() -> None:
    small: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 2, "multiprocessing": False}
    small |= {"kv_cache_memory_bytes": 1 << 18, "block_size": 32}
    with VLLM(**small).build(TINY) as session:
        window = session.info.max_model_len
        assert window == 223  # seven blocks of the eight, and less the token that is generated
        full = RollingLoglikelihoodRequest(CONTEXT * 4)
        (score,) = session.loglikelihood_rolling([full])
        assert score.token_count > window
    with pytest.raises(EngineUnavailableError) as refused:
        VLLM(**small, max_model_len=300).build(TINY)
    assert str(refused.value).startswith(
        "'builtin:tiny' doesn't fit into memory; set max_model_len, kv_cache_memory_bytes, "
        "gpu_memory_utilization, tensor_parallel_size or quantization: "
    )
    assert "KV cache is needed" in str(refused.value)


def test_held_group_can_be_aborted() -> None:
    from evalution_vllm.requests import (
        StepRequests,
        _Request,  # pyright: ignore[reportPrivateUsage]
    )

    class Engine:
        def __init__(self) -> None:
            self.added: list[str] = []
            self.aborted: list[str] = []

        def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
            self.added.append(request_id)

        def step(self) -> list[Any]:
            return []

        def abort_request(self, request_ids: list[str]) -> None:
            self.aborted += request_ids

    class Parameters:
        refusals = (ValueError,)

        def make(
            self, request_id: str, work: TokenPrompt | SpanGroup, *, reads_cache: bool = False
        ) -> Any:
            listed = work.listed if isinstance(work, SpanGroup) else None
            ranked = work.logprobs if isinstance(work, TokenPrompt) else None
            made = SimpleNamespace(logprob_token_ids=listed, logprobs=ranked)
            return _Request(request_id, work, made, [1])

    engine: Any = Engine()
    requests = StepRequests(engine, Parameters(), reads_cache=True)  # pyright: ignore
    groups = group_spans([TokenSpan([1, 2], 1)], listed_limit=1)
    requests.generate("plain", TokenPrompt(0, [1], 1))
    requests.generate("ranked", TokenPrompt(1, [1], 1, logprobs=1))
    requests.score("held", groups[0])
    requests.score("held too", groups[0])
    requests.generate("ranked behind", TokenPrompt(2, [1], 1, logprobs=1))
    assert engine.added == ["plain", "ranked"]
    requests.abort(["held", "ranked"])
    requests.advance()
    assert engine.added == ["plain", "ranked", "held too"]
    assert engine.aborted == ["ranked"]
    requests.abort(["held too"])
    requests.advance()
    assert engine.added[-1] == "ranked behind"


def test_batch_of_which_one_is_refused_is_run_one_by_one() -> None:
    from evalution_vllm.requests import (
        _Request,  # pyright: ignore[reportPrivateUsage]
        make_batch_requests,
    )

    class Batches:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def generate(self, prompts: list[Any], params: list[Any], **_: Any) -> list[Any]:
            self.sizes.append(len(prompts))
            if [13] in [prompt["prompt_token_ids"] for prompt in prompts]:
                raise ValueError("no 13")
            completion = SimpleNamespace(
                token_ids=[1], logprobs=None, finish_reason="length", stop_reason=None
            )
            return [
                SimpleNamespace(outputs=[completion], finished=True, num_cached_tokens=0)
                for _ in prompts
            ]

        def reset_prefix_cache(self) -> bool:
            return True

    class Parameters:
        refusals = (ValueError,)

        def make(self, request_id: str, work: Any) -> Any:
            made = SimpleNamespace(logprob_token_ids=None, logprobs=None)
            return _Request(request_id, work, made, work.token_ids)

        def to_invalid_request(self, error: Exception) -> InvalidRequestError:
            return InvalidRequestError(f"refused: {error}")

    llm: Any = Batches()
    requests = make_batch_requests(llm, Parameters())  # pyright: ignore
    for token_id in (3, 13, 4):
        requests.generate(str(token_id), TokenPrompt(0, [token_id], 1))
    found = {update.request_id: str(update.error or "") for update in requests.advance()}
    assert found == {"3": "", "13": "refused: no 13", "4": ""}
    assert llm.sizes == [3, 1, 1, 1]
