"""Small random models of several architectures, and checkpoints of them with a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

VOCAB = 97
WINDOW = 128
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WIDE_INIT = 0.3
"""Far enough from upstream's 0.02 that a random model isn't near uniform."""
_ENCODER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": WINDOW + 2,
    "initializer_range": _WIDE_INIT,
}


@cache
def _make_model(kind: str, attention: str) -> Any:
    torch.manual_seed(7)
    wide = {"initializer_range": _WIDE_INIT, "attn_implementation": attention}
    made: dict[str, Callable[[], Any]] = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, **wide)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=VOCAB,
                n_positions=WINDOW,
                n_embd=32,
                n_layer=2,
                n_head=4,
                bos_token_id=1,
                eos_token_id=2,
                **wide,
            )
        ),
        "mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**_SMALL, sliding_window=16, **wide)
        ),
        "gemma2": lambda: transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**_SMALL, head_dim=8, sliding_window=WINDOW, **wide)
        ),
        "gpt_neo": lambda: transformers.GPTNeoForCausalLM(
            transformers.GPTNeoConfig(
                vocab_size=VOCAB,
                max_position_embeddings=WINDOW,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                window_size=20,
                initializer_range=_WIDE_INIT,
            )
        ),
        "granite": lambda: transformers.GraniteForCausalLM(
            transformers.GraniteConfig(**_SMALL, logits_scaling=1.05, **wide)
        ),
        "roberta": lambda: transformers.RobertaForCausalLM(
            transformers.RobertaConfig(**_ENCODER, is_decoder=True)
        ),
        "bert": lambda: transformers.BertLMHeadModel(transformers.BertConfig(**_ENCODER)),
        "bloom": lambda: transformers.BloomForCausalLM(
            transformers.BloomConfig(
                vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=_WIDE_INIT
            )
        ),
        "falcon": lambda: transformers.FalconForCausalLM(
            transformers.FalconConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                alibi=True,
                **wide,
            )
        ),
        "mamba": lambda: transformers.MambaForCausalLM(
            transformers.MambaConfig(
                vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, initializer_range=_WIDE_INIT
            )
        ),
    }
    return made[kind]().eval()


@pytest.fixture
def random_model() -> Callable[..., Any]:
    """A function that gives a random model of a kind, in a dtype; the same one each time."""

    def give(kind: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
        return _make_model(kind, attention).to(dtype)

    return give


@pytest.fixture
def tokenizer() -> Any:
    """One of Transformers, whose words are `w3` to `w96`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    specials = ["<unk>", "<s>", "</s>"]
    words = {word: at for at, word in enumerate(specials)}
    words |= {f"w{number}": number for number in range(len(specials), VOCAB)}
    built = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@pytest.fixture
def write_checkpoint(
    tmp_path: Path, random_model: Callable[..., Any], tokenizer: Any
) -> Callable[..., Path]:
    """A function that writes a random model with a tokenizer whose words are `w3` to `w96`."""

    def write(
        kind: str = "llama", name: str = "checkpoint", dtype: torch.dtype = torch.float32
    ) -> Path:
        folder = tmp_path / name
        random_model(kind, dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return write
