"""A vLLM that tells other prompt log-probabilities than the model's never scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalution_core import EngineRuntimeError, LoglikelihoodRequest, Model
from evalution_vllm import VLLM
from evalution_vllm.session import VLLMSession

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
    ("lie", "told"),
    [
        (shifted, "failed its self check and refuses to score"),
        (zero, "failed its self check and refuses to score"),
        (missing, "refuses to score: 25 prompt log-probabilities were asked for and 0 came"),
    ],
)
def test_a_runtime_that_tells_something_else_never_scores(
    session: VLLMSession,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[Any], None],
    told: str,
) -> None:
    runtime: Any = session._loop._runtime
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
            assert told in str(refused.value)
    session._check_result = None
    assert session.check().outcome == "passed"
    assert session.loglikelihood([PAIR])[0].logprob < 0


def test_a_model_that_can_not_be_run_is_told_as_the_session_is_built(
    engine: VLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.32 says so of heads of 16 numbers on a CPU, once the first prompt is run."""

    def run(*_: Any) -> None:
        raise RuntimeError("Unsupported CPU attention configuration: head_dim=16")

    monkeypatch.setattr("evalution_vllm.session.cache_problem", run)
    with pytest.raises(EngineRuntimeError, match=r"prefix cache failed: .* head_dim=16"):
        engine.build(Model("builtin:tiny"))
