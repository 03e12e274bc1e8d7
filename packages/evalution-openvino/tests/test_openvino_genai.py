"""Generation by openvino-genai: what it completes, and what is said where it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    EngineUnavailableError,
    GenerationRequest,
    Model,
)
from evalution_openvino import OpenVINO

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

TINY = Model(path="builtin:tiny")


def _build(engine: OpenVINO) -> Any:
    return engine.build(TINY)


# With a session made before: importing Optimum Intel warns, and the engine keeps that quiet.
@pytest.mark.usefixtures("tiny")
def test_without_genai_it_generates_in_fixed_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalution_openvino.runtime.GENAI", ">=9999")
    with pytest.raises(EngineUnavailableError, match=r'pip install "evalution-openvino\[genai\]"'):
        OpenVINO(genai=True).build(TINY)
    with _build(OpenVINO(dtype="float32")) as session:
        execution = session.describe_execution()
        assert Capability.CONTINUOUS_BATCHING not in session.capabilities
    assert (execution["batching"], execution["generation"]) == ("fixed batches", "generate")
    assert "continuous batching: needs openvino-genai>=9999" in execution["fallback"]


def test_genai_and_fixed_batches_complete_prompts_alike(tiny: Any) -> None:
    requests = [
        GenerationRequest("1 + 2 =", max_new_tokens=1 + at % 9, stop=["\n"] if at % 2 else [])
        for at in range(12)
    ]
    expected = [output.text for output in tiny.generate(requests)]
    with _build(OpenVINO(dtype="float32", genai=True, batch_size=3)) as session:
        found = session.generate(requests)
        sampled = GenerationRequest("1 + 2 =", max_new_tokens=8, do_sample=True, seed=3)
        sampled.temperature = 1.5
        assert session.generate([sampled])[0].text == tiny.generate([sampled])[0].text
        execution = session.describe_execution()
        session.gc()
        again = session.generate(requests)
    assert [output.text for output in found] == expected
    assert [output.text for output in again] == expected
    assert (execution["batching"], execution["generation"]) == ("continuous", "openvino-genai")
    assert execution["scheduler"]["max_num_seqs"] == 3


def test_a_model_that_genai_cannot_take_is_a_recorded_fallback(tmp_path: Path) -> None:
    request = GenerationRequest("1 + 2 =", max_new_tokens=4)
    with _build(OpenVINO(dtype="float32", genai=True)) as session:
        session._generation_path._folder = tmp_path
        for _ in range(2):
            with pytest.raises(EngineRuntimeError, match="genai=True: openvino-genai can't take"):
                session.generate([request])
    with _build(OpenVINO(dtype="float32")) as session:
        session._generation_path._folder = tmp_path
        assert session.generate([request])[0].text
        execution = session.describe_execution()
    assert execution["generation"] == "generate"
    assert execution["fallback"].startswith("openvino-genai: ")


def test_a_prompt_that_the_cache_cannot_hold_fails_alone() -> None:
    engine = OpenVINO(dtype="float32", genai=True, batch_size=2, enable_prefix_caching=False)
    with _build(engine) as session:
        session._generation_path._settings = {
            **session._generation_path._settings,
            "num_kv_blocks": 4,
        }
        long, short = "The cat sleeps. " * 40, "1 + 2 ="
        results: dict[str, Any] = dict(
            session.generate_continuous(
                (text, GenerationRequest(text, max_new_tokens=4)) for text in (long, short)
            )
        )
        assert results[short].text
        with pytest.raises(EngineRuntimeError, match="has no room for a prompt of"):
            raise results[long].error
