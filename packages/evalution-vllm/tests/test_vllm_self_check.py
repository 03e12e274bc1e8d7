"""A vLLM that returns wrong prompt log-probabilities never scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalution_core import EngineRuntimeError, LoglikelihoodRequest, Model
from evalution_enginekit.serving_session import ServingSession
from evalution_vllm import VLLM

PAIR = LoglikelihoodRequest("The red cat", " sleeps in the park every morning.")


def shifted(output: Any) -> None:
    """Each fed token has the value of the one before it."""
    rows = output.prompt_logprobs
    firsts = [at for at, end in zip(rows.start_indices, rows.end_indices, strict=True) if at < end]
    values = [rows.logprobs[at] for at in firsts]
    for at, value in zip(firsts[1:], values, strict=False):
        rows.logprobs[at] = value


def zero(output: Any) -> None:
    rows = output.prompt_logprobs
    rows.logprobs[:] = [0.0] * len(rows.logprobs)


def missing(output: Any) -> None:
    output.prompt_logprobs = None


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (shifted, "failed its self check and refuses to score"),
        (zero, "failed its self check and refuses to score"),
        (missing, "refuses to score: vLLM returned 0 of 25 prompt log-probabilities"),
    ],
)
def test_wrong_prompt_logprobs_are_refused_before_the_first_score(
    session: ServingSession,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[Any], None],
    message: str,
) -> None:
    runtime: Any = session._requests
    step = runtime._engine.step

    def lying() -> list[Any]:
        outputs = step()
        for output in outputs:
            if output.finished and output.prompt_logprobs is not None:
                lie(output)
        return outputs

    session._check_result = None
    with monkeypatch.context() as patched:
        patched.setattr(runtime._engine, "step", lying)
        assert session.check().outcome == "failed"
        for _ in range(2):
            with pytest.raises(EngineRuntimeError) as refused:
                session.loglikelihood([PAIR])
            assert message in str(refused.value)
    session._check_result = None
    assert session.check().outcome == "passed"
    assert session.loglikelihood([PAIR])[0].logprob < 0


def test_model_that_the_device_cannot_run_fails_the_build(
    engine: VLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.32 refuses heads of 16 numbers on a CPU only once it runs the first prompt."""

    def run(*_: Any, **__: Any) -> None:
        raise RuntimeError("Unsupported CPU attention configuration: head_dim=16")

    monkeypatch.setattr("evalution_vllm.session.find_cache_problem", run)
    with pytest.raises(EngineRuntimeError, match=r"prefix cache failed: .* head_dim=16"):
        engine.build(Model("builtin:tiny"))
