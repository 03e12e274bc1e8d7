"""The mock engine: deterministic, and consistent between generation and scoring."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from evalution_core import (
    ConfigurationError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    SessionClosedError,
)
from evalution_enginekit.mock import Mock, table


def completion(name: str = "m", **options: Any) -> Any:
    request = GenerationRequest("The first", **{"max_new_tokens": 24, **options})
    with Mock().build(Model(name)) as session:
        return session.generate([request])[0]


def test_batch_size_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="'batch_size' of engine Mock must be at least 1"):
        Mock(batch_size=0)


def test_the_same_model_always_answers_the_same() -> None:
    assert completion() == completion()
    assert completion().text != completion("another").text


def test_a_seed_gives_the_same_sample_whatever_else_runs() -> None:
    request = GenerationRequest("a", max_new_tokens=16, do_sample=True, temperature=1.0, seed=7)
    other = GenerationRequest("b", max_new_tokens=9, do_sample=True, temperature=1.0, seed=8)
    with Mock(batch_size=3).build(Model("m")) as session:
        (alone,) = session.generate([request])
        _, together, _ = session.generate([other, request, other])
    assert alone.text == together.text
    assert alone.text != completion(do_sample=True, temperature=1.0, seed=9).text


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.001}, {"temperature": 0.001}])
def test_sampling_that_leaves_one_choice_is_greedy(cut: dict[str, Any]) -> None:
    options = {"temperature": 1.0, "seed": 1, "do_sample": True} | cut
    assert completion(**options).token_ids == completion().token_ids


def test_generated_tokens_score_as_generated() -> None:
    output = completion(logprobs=2, ignore_eos=True)
    assert [max(top.values()) for top in output.top_logprobs] == output.token_logprobs
    assert all(len(top) == 2 for top in output.top_logprobs)
    with Mock().build(Model("m")) as session:
        (scored,) = session.loglikelihood(
            [
                LoglikelihoodRequest(
                    context_input_ids=[256, *b"The first"],
                    continuation_input_ids=output.token_ids,
                )
            ]
        )
    assert scored.token_logprobs == output.token_logprobs
    assert scored.is_greedy


def test_mock_rows_are_distributions() -> None:
    for last in range(0, 260, 13):
        assert math.isclose(math.fsum(map(math.exp, table("m").row([1, last]))), 1.0)


def test_mock_options_are_validated() -> None:
    engine = Mock(max_model_len=64)
    assert pickle.loads(pickle.dumps(engine)) == engine
    with pytest.raises(ConfigurationError, match="did you mean 'batch_size'"):
        Mock(batchsize=3)  # pyright: ignore[reportCallIssue]


def test_mock_session_describes_itself() -> None:
    session = Mock(max_model_len=64, batch_size=3).build(Model("m"))
    assert session.identity() == {"mock": "m"}
    assert (session.info.max_model_len, session.preferred_batch_size) == (64, 3)
    assert session.tokenizer.encode("a") == [97]
    told = session.describe_execution()
    assert told["backend"] == "Mock"
    assert (told["batching"], told["max_model_len"]) == ("continuous", 64)
    assert told["self_check"] == "not run"
    session.close()


def test_a_closed_session_refuses_every_call() -> None:
    session = Mock().build(Model("m"))
    session.close()
    session.close()
    calls: list[Any] = [
        lambda: session.generate([GenerationRequest("a")]),
        lambda: session.generate_continuous([]),
        lambda: session.stream([]),
        lambda: session.loglikelihood([]),
        lambda: session.loglikelihood_continuous([]),
        lambda: session.loglikelihood_rolling([]),
        session.check,
        session.gc,
    ]
    for call in calls:
        with pytest.raises(SessionClosedError, match="the Mock session is closed; build a new"):
            call()


def test_mock_template_reads_no_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"no variable 'thinks' \(it reads: none\)"):
        Mock().build(Model("m", chat_template_kwargs={"thinks": True}))
