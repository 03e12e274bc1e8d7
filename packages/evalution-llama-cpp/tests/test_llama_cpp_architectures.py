"""Of one file, llama.cpp and tinygrad give the same numbers, whatever the architecture.

They have no kernel in common, so a number that both give is the file's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_llama_cpp import LlamaCpp

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
tinygrad = pytest.importorskip("evalution_tinygrad", reason="evalution-tinygrad is not installed")
pytest.importorskip("tinygrad", reason="tinygrad is not installed")


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("llama", {}),
        ("llama", {"rope.freq_base": 5e5, "rope.scaling.factor": 1.0}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3moe", {}),
        ("olmoe", {}),
    ],
)
def test_scores_agree_with_tinygrad_for_each_architecture(
    random_gguf: Callable[..., Path], architecture: str, settings: dict[str, float]
) -> None:
    model = Model(str(random_gguf(architecture, settings=settings)))
    chance = random.Random(architecture)
    pairs = [
        LoglikelihoodRequest(
            context_input_ids=[chance.randrange(3, 290) for _ in range(length)],
            continuation_input_ids=[chance.randrange(3, 290) for _ in range(5)],
        )
        for length in (1, 7, 40, 90)
    ]
    prompts = [
        GenerationRequest(input_ids=pair.context_input_ids, max_new_tokens=12, ignore_eos=True)
        for pair in pairs
    ]
    engines = (
        LlamaCpp(device="cpu", n_threads=1, max_model_len=128),
        tinygrad.Tinygrad(device="CPU", max_model_len=128),
    )
    found = []
    for engine in engines:
        with engine.build(model) as session:
            scores = [score.token_logprobs for score in session.loglikelihood(pairs)]
            found.append((scores, [output.token_ids for output in session.generate(prompts)]))
    (expected, expected_ids), (scores, ids) = found
    for mine, other in zip(scores, expected, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
    assert ids == expected_ids
