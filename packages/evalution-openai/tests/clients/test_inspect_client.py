"""Inspect's `openai-api` provider against our server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution_core import BaseInferenceSession, GenerationRequest

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect-ai isn't installed; see tools/envs")
pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]

QUESTIONS = ["What is 3 + 4?", "What is 2 + 2?"]


def test_a_task_is_answered(
    url: str, tiny: BaseInferenceSession, tmp_path: Path, monkeypatch: Any
) -> None:
    from inspect_ai import Task, eval as evaluate  # noqa: I001
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig
    from inspect_ai.scorer import includes

    monkeypatch.setenv("TINY_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("TINY_API_KEY", "none")
    expected = tiny.generate(
        [
            GenerationRequest(messages=[{"role": "user", "content": question}], max_new_tokens=10)
            for question in QUESTIONS
        ]
    )
    dataset = [
        Sample(input=question, target=output.text)
        for question, output in zip(QUESTIONS, expected, strict=True)
    ]
    (log,) = evaluate(
        Task(dataset=dataset, scorer=includes()),
        model="openai-api/tiny/tiny",
        log_dir=str(tmp_path),
        display="none",
        max_retries=0,
        **GenerateConfig(
            max_tokens=10,
            temperature=0,
            seed=7,
            stop_seqs=["\n\n\n"],
            logprobs=True,
            top_logprobs=2,
        ).model_dump(exclude_none=True),
    )
    assert log.status == "success", log.error
    texts = [sample.output.completion for sample in log.samples]
    assert texts == [output.text for output in expected]
    assert all(sample.output.usage.output_tokens for sample in log.samples)
    assert all(sample.output.choices[0].logprobs.content for sample in log.samples)
    assert log.results.scores[0].metrics["accuracy"].value == 1
