"""Both engines on the guide's fixture, from the Hub: `HF_HUB_OFFLINE=0 pytest -m hub`."""

from __future__ import annotations

import pytest

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_transformers import Transformers, TransformersCompat

pytest.importorskip("gguf", reason="gguf is not installed")

FILE = {"gguf_file": "Llama-3.2-1B-Instruct-Q4_K_M.gguf"}
MODEL = Model("bartowski/Llama-3.2-1B-Instruct-GGUF", model_kwargs=FILE, tokenizer_kwargs=FILE)


@pytest.mark.hub
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", [Transformers, TransformersCompat])
def test_the_hub_model_of_the_guide_answers(kind: type[TransformersCompat]) -> None:
    ask = [{"role": "user", "content": "What is the capital of France? Answer with its name."}]
    context = "The capital of France is"
    with kind(dtype="bfloat16", max_model_len=512).build(MODEL) as session:
        (answer,) = session.generate([GenerationRequest(messages=ask, max_new_tokens=16)])
        paris, rome = session.loglikelihood(
            [LoglikelihoodRequest(context, " Paris"), LoglikelihoodRequest(context, " Rome")]
        )
        assert session.check().outcome == "passed"
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert paris.logprob > rome.logprob
