"""Sessions on the real scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit.serving import SpanGroup
from evalution_enginekit.serving_session import ServingSession
from evalution_sglang import SGLang

pytest.importorskip("sglang", reason="sglang is not installed")

CONTEXT = "The red cat sleeps in the park every morning. " * 6
ENDINGS = [" The dog sees it.", " The dog likes the red house.", " One plus two is three."]


def pairs() -> list[LoglikelihoodRequest]:
    return [LoglikelihoodRequest(CONTEXT, ending) for ending in ENDINGS]


def cached(outputs: list[Any]) -> list[int]:
    return sorted(output.runtime["cached_tokens"] for output in outputs)


def test_shared_context_is_prefilled_once_and_scores_as_without_the_cache(
    session: ServingSession,
) -> None:
    session.check()  # which leaves something in the cache
    session.gc()
    shared = session.loglikelihood(pairs())
    assert cached(shared)[0] == 0
    assert cached(shared)[1] >= 64
    for pair, output in zip(pairs(), shared, strict=True):
        session.gc()
        (alone,) = session.loglikelihood([pair])
        assert alone.runtime == {"cached_tokens": 0}
        assert alone.token_logprobs == pytest.approx(output.token_logprobs, abs=1e-5)
        assert alone.is_greedy == output.is_greedy


def test_repeated_score_is_recomputed_where_the_cache_has_no_values(
    session: ServingSession,
) -> None:
    text = CONTEXT + ENDINGS[0]
    late = LoglikelihoodRequest(CONTEXT[:10], text[10:])
    (first,) = session.loglikelihood([late])
    (again,) = session.loglikelihood([late])
    assert first.token_logprobs == pytest.approx(again.token_logprobs, abs=1e-5)
    rolling = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text)] * 2)
    assert rolling[0].token_logprobs == pytest.approx(rolling[1].token_logprobs, abs=1e-5)


def test_one_token_choices_are_one_request(
    session: ServingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[SpanGroup] = []
    requests: Any = session._requests
    score = requests.score
    monkeypatch.setattr(
        requests, "score", lambda name, group: (submitted.append(group), score(name, group))
    )
    (likeliest,) = session.generate([GenerationRequest("The", max_new_tokens=1)])
    choices = [likeliest.text, " dog", " park"]
    found = session.loglikelihood([LoglikelihoodRequest("The", choice) for choice in choices])
    assert [len(group.spans) for group in submitted] == [len(set(choices))]
    assert found[0].is_greedy
    for choice, output in zip(choices, found, strict=True):
        assert output.token_count == 1
        assert output.is_greedy is (choice == likeliest.text)


def shifted(meta: dict[str, Any]) -> None:
    """Each token gets the value of the one before."""
    entries = meta["input_token_logprobs"]
    values = [value for value, _, _ in entries]
    for at in range(2, len(entries)):
        entries[at] = (values[at - 1], *entries[at][1:])


def shortened(meta: dict[str, Any]) -> None:
    """The values begin one token late."""
    del meta["input_token_logprobs"][:1]
    del meta["input_top_logprobs"][:1]


def zero(meta: dict[str, Any]) -> None:
    """Every value is there, and none is right."""
    for at, entry in enumerate(meta["input_token_logprobs"]):
        meta["input_token_logprobs"][at] = (0.0, *entry[1:])


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (shifted, "refuses to score: .*differs"),
        (zero, "refuses to score"),
        (shortened, "an empty one before them were asked for"),
    ],
)
def test_wrong_prompt_logprobs_are_refused_before_the_first_score(
    session: ServingSession,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    requests: Any = session._requests
    engine = requests._engine
    truth = engine.async_generate

    async def lying(**given: Any) -> Any:
        output = await truth(**given)
        if isinstance(output, dict) and len(output["meta_info"]["input_token_logprobs"]) > 1:
            lie(output["meta_info"])
        return output

    monkeypatch.setattr(engine, "async_generate", lying)
    monkeypatch.setattr(session, "_check_result", None)
    with pytest.raises(EngineRuntimeError, match=message):
        session.loglikelihood(pairs())


def test_logprobs_are_the_models_own_at_any_temperature(
    session: ServingSession,
) -> None:
    hot = GenerationRequest(
        "The dog",
        max_new_tokens=6,
        do_sample=True,
        temperature=2.5,
        top_k=5,  # ids that the model has and the tokenizer lacks can't be scored
        logprobs=2,
        ignore_eos=True,
    )
    (output,) = session.generate([hot])
    codec: Any = session.tokenizer
    context = codec.encode("The dog")
    (score,) = session.loglikelihood(
        [
            LoglikelihoodRequest(
                context_input_ids=[*codec.leading_ids, *context],
                continuation_input_ids=output.token_ids,
            )
        ]
    )
    assert output.token_logprobs == pytest.approx(score.token_logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest("a", num_beams=2), "num_beams=2"),
        (GenerationRequest("a", do_sample=True, temperature=1.0, seed=1), "seed"),
    ],
)
def test_beams_and_seeds_are_refused(
    session: ServingSession, request_: GenerationRequest, message: str
) -> None:
    with pytest.raises(UnsupportedRequestError, match=message):
        session.generate([request_])


def test_closed_stream_leaves_no_request_at_the_scheduler(session: ServingSession) -> None:
    requests = [
        (at, GenerationRequest("a", max_new_tokens=400, ignore_eos=True)) for at in range(9)
    ]
    stream: Any = session.stream(requests)
    next(stream)
    stream.close()
    session.gc()
    requests_of_runtime: Any = session._requests
    manager = requests_of_runtime._engine.tokenizer_manager
    assert session.requests_in_flight == 0
    assert manager.rid_to_state == {}
    (output,) = session.loglikelihood([LoglikelihoodRequest("a", "b")])
    assert output.runtime == {"cached_tokens": 0}


def test_batch_size_defaults_to_the_schedulers_slots(session: ServingSession) -> None:
    assert session.preferred_batch_size == 16
    outputs = session.generate(
        [GenerationRequest("The", max_new_tokens=1 + at % 7, ignore_eos=True) for at in range(40)]
    )
    assert [output.completion_tokens for output in outputs] == [1 + at % 7 for at in range(40)]


def test_identity_holds_file_hashes(session: ServingSession) -> None:
    identity = session.identity() or {}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(identity)


def test_cache_too_small_for_the_window_shrinks_it_or_is_refused() -> None:
    from types import SimpleNamespace

    from evalution_core import ConfigurationError
    from evalution_sglang.load import fit_window

    started: Any = SimpleNamespace(tokenizer_manager=SimpleNamespace(max_req_input_len=101))
    assert fit_window(SGLang(), 512, started) == 100
    assert fit_window(SGLang(max_model_len=64), 64, started) == 64
    with pytest.raises(ConfigurationError, match="has room for requests of 100 tokens"):
        fit_window(SGLang(context_length=512), 512, started)
