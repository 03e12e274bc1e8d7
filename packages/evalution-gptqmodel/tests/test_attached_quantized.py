"""A quantised model of the caller's, evaluated where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from evalution_core import ConfigurationError, LoglikelihoodRequest, Model
from evalution_gptqmodel import GPTQModel
from evalution_gptqmodel.runtime import divert_output

PAIR = LoglikelihoodRequest("Question: What is 3 + 4?\nAnswer:", " 3 + 4 = 7")


@pytest.fixture
def tokenizer(quantized: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(quantized)


@pytest.fixture(scope="module")
def loaded(runtime: Any, quantized: Path) -> Any:
    """The return value of GPTQModel's loader."""
    with divert_output():
        return runtime.GPTQModel.load(str(quantized), device="cpu", dtype=torch.float32)


def test_a_model_in_memory_scores_as_its_folder_does(
    loaded: Any, quantized: Path, tokenizer: Any
) -> None:
    with GPTQModel().attach({"model": loaded, "tokenizer": tokenizer}) as session:
        execution = session.describe_execution()
        (found,) = session.loglikelihood([PAIR])
        assert session.identity() is None
    with GPTQModel(dtype="float32", device="cpu").build(Model(path=str(quantized))) as session:
        (saved,) = session.loglikelihood([PAIR])
    assert found.token_logprobs == saved.token_logprobs
    assert (execution["attached"], execution["quantization"], execution["bits"]) == (
        True,
        "gptq",
        4,
    )
    assert (execution["quantized_backend"], execution["quantized_layers"]) == (
        "TorchFusedLinear",
        14,
    )


def test_the_wrapped_transformers_model_can_be_attached(loaded: Any, tokenizer: Any) -> None:
    with GPTQModel().attach({"model": loaded.model, "tokenizer": tokenizer}) as session:
        execution = session.describe_execution()
    assert (execution["quantization"], execution["quantized_layers"]) == ("gptq", 14)
    assert (execution["bits"], execution["dtype"]) == (None, "float32")


@pytest.mark.parametrize("inner", [False, True])
def test_a_model_quantised_in_memory_is_refused(wrapper: Any, tokenizer: Any, inner: bool) -> None:
    with pytest.raises(ConfigurationError) as caught:
        GPTQModel().attach({"model": wrapper.model if inner else wrapper, "tokenizer": tokenizer})
    assert str(caught.value) == (
        "this model was quantised in this process, and GPTQModel readies its kernels when it loads "
        "a checkpoint: save the model, and build the engine on that folder"
    )


def test_a_model_without_quantised_layers_is_for_another_engine(tiny: Path, tokenizer: Any) -> None:
    dense = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    with pytest.raises(
        ConfigurationError,
        match="no layer of this LlamaForCausalLM is one of GPTQModel's quantised ones; run",
    ):
        GPTQModel().attach({"model": dense, "tokenizer": tokenizer})


@pytest.mark.parametrize(
    ("handles", "problem"),
    [
        ({}, "model and tokenizer missing; it has: nothing"),
        ({"tokenizer": 1}, "model missing; it has: tokenizer"),
        (None, "got a NoneType"),
    ],
)
def test_a_missing_handle_is_refused(handles: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        GPTQModel().attach(handles)
    assert str(caught.value) == f"attach needs a mapping with model and tokenizer; {problem}"


def test_loading_options_are_refused_for_an_attached_model(loaded: Any, tokenizer: Any) -> None:
    engine = GPTQModel(backend="gptq_torch", dtype="bfloat16")
    with pytest.raises(ConfigurationError) as caught:
        engine.attach({"model": loaded, "tokenizer": tokenizer})
    assert str(caught.value) == (
        "backend, dtype can't be set for a model that is loaded already: attach takes it as it is"
    )
