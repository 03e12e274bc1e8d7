"""The probe finds which forms of forward pass a model allows, and allows no other."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from evalution_core import ConfigurationError, GenerationRequest
from evalution_transformers import TransformersCompat
from evalution_transformers.probe import find_window, probe_architecture

WINDOW = 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("kind", "splits"), [("llama", True), ("gpt2", True), ("gemma2", False), ("granite", False)]
)
def test_logits_changed_after_the_output_layer_rule_out_row_projection(
    random_model: Callable[..., Any], kind: str, splits: bool, dtype: torch.dtype
) -> None:
    """A cap of 30 and a scale of 1.05 are less than the noise of bfloat16 at small logits."""
    attention = "eager" if kind == "gemma2" else "sdpa"
    found = probe_architecture(random_model(kind, dtype, attention), WINDOW)
    assert found.splits is splits
    assert found.shares_prefixes


@pytest.mark.parametrize("window", [WINDOW, 16])
def test_a_window_in_the_models_own_code_keeps_prefixes_apart(
    random_model: Callable[..., Any], window: int
) -> None:
    found = probe_architecture(random_model("gpt_neo"), window)
    assert not found.shares_prefixes
    assert found.obstacle == "its own code bounds the reach of its attention (window_size=20)"


def test_a_multimodal_model_has_the_window_of_its_text_decoder() -> None:
    config = transformers.Gemma3Config(
        text_config={
            "vocab_size": 97,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": 64,
        }
    )
    model = SimpleNamespace(config=config)
    assert find_window(model, None) == 64  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="must be between 2 and the model's own 64"):
        find_window(model, 65)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["bloom", "mamba"])
def test_a_model_without_a_window_gets_a_default_and_a_warning(
    random_model: Callable[..., Any], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    model = random_model(kind)
    caplog.clear()
    assert find_window(model, 4096) == 4096
    assert not caplog.messages
    assert find_window(model, None) == 2048
    assert "names no longest sequence; max_model_len=2048 is taken for it" in caplog.text


def test_a_model_with_a_window_gets_no_warning(
    random_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model("llama")
    caplog.clear()
    assert find_window(model, None) == WINDOW
    assert not caplog.messages


def test_a_non_causal_model_is_refused(random_model: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="BertLMHeadModel at a token depend on the tokens"):
        probe_architecture(random_model("bert"), WINDOW)


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(
        vocab_size=97, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    model: Any = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(ConfigurationError, match=r"encoder-decoder.*causal models alone"):
        probe_architecture(model, WINDOW)


@pytest.mark.parametrize(
    ("kind", "pads"), [("llama", True), ("bloom", True), ("mamba", True), ("roberta", False)]
)
def test_padding_is_used_only_where_it_changes_no_logits(
    random_model: Callable[..., Any], kind: str, pads: bool
) -> None:
    assert probe_architecture(random_model(kind), WINDOW).pads is pads


def test_a_padding_sensitive_model_completes_prompts_one_by_one(
    random_model: Callable[..., Any], tokenizer: Any
) -> None:
    model = random_model("roberta")
    numbers = random.Random(3)
    requests = [
        GenerationRequest(
            input_ids=[numbers.randrange(3, 97) for _ in range(length)],
            max_new_tokens=6,
            ignore_eos=True,
        )
        for length in (3, 17, 9, 30)
    ]
    with TransformersCompat().attach({"model": model, "tokenizer": tokenizer}) as session:
        found = [output.token_ids for output in session.generate(requests)]
        assert found == [session.generate([request])[0].token_ids for request in requests]
