"""Scores by release: their source, their values, and the detection of wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_reference import Reference
from evalution_tensorrt_llm import TensorRTLLM
from evalution_tensorrt_llm.runtime import ScoreSource, choose_score_source

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

TINY = Model("builtin:tiny")
BEFORE, AFTER = "1.2.1", "1.3.0rc11"
BOTH = pytest.mark.parametrize("release", [BEFORE, AFTER])
CONTEXT = "The red cat sleeps in the park every morning. " * 6
ENDINGS = [" The dog sees it.", " The dog likes the red house.", " One plus two is three."]
PAIRS = [LoglikelihoodRequest(CONTEXT, ending) for ending in ENDINGS]


def engine(**options: Any) -> TensorRTLLM:
    return TensorRTLLM(dtype="float32", max_batch_size=8, **options)


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    with Reference(dtype="float64").build(TINY) as session:
        return [list(output.token_logprobs or []) for output in session.loglikelihood(PAIRS)]


@pytest.mark.parametrize(
    ("release", "source"),
    [
        ("1.2.0", ScoreSource.CONTEXT_LOGITS),
        ("1.2.1", ScoreSource.CONTEXT_LOGITS),
        ("1.3.0rc5.post2", ScoreSource.CONTEXT_LOGITS),
        ("1.3.0rc10", ScoreSource.CONTEXT_LOGITS),
        ("1.3.0rc11", ScoreSource.PROMPT_LOGPROBS),
        ("1.3.0rc12.post1", ScoreSource.PROMPT_LOGPROBS),
        ("1.3.0", ScoreSource.PROMPT_LOGPROBS),
    ],
)
def test_release_decides_the_source_of_scores(release: str, source: ScoreSource) -> None:
    assert choose_score_source(release) is source


@BOTH
def test_scores_are_those_of_the_reference(
    installed: Any, release: str, expected: list[list[float]]
) -> None:
    installed(release)
    with engine().build(TINY) as session:
        assert session.check().outcome == "passed"
        assert session.describe_execution()["scores_from"] == str(choose_score_source(release))
        for output, values in zip(session.loglikelihood(PAIRS), expected, strict=True):
            assert output.token_logprobs == pytest.approx(values, abs=1e-4)


@BOTH
def test_likeliest_tokens_are_those_of_the_reference(installed: Any, release: str) -> None:
    installed(release)
    pairs = [
        replace(pair, top_logprobs=count) for pair, count in zip(PAIRS, (1, 3, 999), strict=True)
    ]
    text = RollingLoglikelihoodRequest(CONTEXT * 10, top_logprobs=2)
    with engine().build(TINY) as session, Reference(dtype="float64").build(TINY) as reference:
        found, right = (one.loglikelihood(pairs) for one in (session, reference))
        (rolled,) = session.loglikelihood_rolling([text])
        assert Capability.DISTRIBUTIONS not in session.capabilities
    for output, expected in zip(found, right, strict=True):
        assert output.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-4)
        tops = zip(output.top_logprobs or (), expected.top_logprobs or (), strict=True)
        for top, wanted in tops:
            assert list(top)[:3] == list(wanted)[:3]
            assert top == pytest.approx(wanted, abs=1e-4)
    assert [len(top) for top in rolled.top_logprobs or ()] == [2] * rolled.token_count


@BOTH
def test_scored_requests_reuse_no_blocks(
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
def test_longest_window_fits_into_the_runtime(installed: Any, release: str) -> None:
    installed(release)
    with engine().build(TINY) as session:
        # The model has 512 positions; the runtime cuts longer sequences down to them.
        assert session.info.max_model_len == 512 - choose_score_source(release).spare
        text = CONTEXT * 20
        (whole,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text)])
        (cut,) = session.loglikelihood([LoglikelihoodRequest(text, ENDINGS[0])])
        assert whole.token_count > 512
        assert cut.truncated_tokens
    with engine(max_model_len=64, max_num_tokens=66).build(TINY) as small:
        assert small.info.max_model_len == 64
        (cut,) = small.loglikelihood([LoglikelihoodRequest(text, ENDINGS[0])])
        assert cut.truncated_tokens


@pytest.mark.parametrize(("release", "requests"), [(BEFORE, 1), (AFTER, 3)])
def test_one_token_choices_share_a_request_of_context_logits(
    installed: Any, release: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(release)
    with engine().build(TINY) as session:
        session.check()
        (likeliest,) = session.generate([GenerationRequest("The", max_new_tokens=1)])
        runtime: Any = session._requests
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
    ("release", "lie", "message"),
    [
        (BEFORE, "shifted", "failed its self check and refuses to score"),
        (BEFORE, "zero", "failed its self check and refuses to score: all log-probabilities"),
        (BEFORE, "missing", "computed rows for 0 of"),
        (AFTER, "shifted", "failed its self check and refuses to score"),
        (AFTER, "zero", "failed its self check and refuses to score: all log-probabilities are 0"),
        (AFTER, "missing", "computed rows for 0 of"),
    ],
)
def test_wrong_prompt_scores_are_refused_before_the_first_score(
    installed: Any, release: str, lie: str, message: str
) -> None:
    installed(release, lie)
    with engine().build(TINY) as session:
        for _ in range(2):
            with pytest.raises(EngineRuntimeError) as refused:
                session.loglikelihood(PAIRS)
            assert message in str(refused.value)
        assert session.generate([GenerationRequest("a", max_new_tokens=2)])[0].completion_tokens


def test_logprobs_of_another_token_are_detected(installed: Any) -> None:
    fake = installed(AFTER)
    fake.results.RELEASE = fake.results.Version("1.3.0rc9")
    with engine().build(TINY) as session, pytest.raises(EngineRuntimeError) as refused:
        session.loglikelihood(PAIRS)
    assert "prompt log-probabilities are shifted: token" in str(refused.value)
