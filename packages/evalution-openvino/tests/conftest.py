"""Small random checkpoints with a tokenizer, and one session of the tiny model for many tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Model
from evalution_openvino import OpenVINO

VOCAB = 97
WINDOW = 128
_WIDE_INIT = 0.3
"""Far enough from upstream's 0.02 that a random model isn't near uniform."""


@pytest.fixture(scope="session")
def write_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes a random model whose words are `w3` to `w96`; once for each kind."""
    made: dict[str, Path] = {}

    def write(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("checkpoints") / kind
            _random_model(kind).save_pretrained(made[kind])
            _tokenizer().save_pretrained(made[kind])
        return made[kind]

    return write


@pytest.fixture(scope="module")
def random_session(write_checkpoint: Callable[..., Path]) -> Iterator[Callable[[str], Any]]:
    """A function that gives a session on a random model of a kind, in float32; one for each."""
    made: dict[str, Any] = {}

    def give(kind: str) -> Any:
        if kind not in made:
            engine = OpenVINO(dtype="float32", genai=False)
            made[kind] = engine.build(Model(path=str(write_checkpoint(kind))))
        return made[kind]

    yield give
    for session in made.values():
        session.close()


@pytest.fixture(scope="session")
def tiny() -> Iterator[Any]:
    """The tiny model in float32, generating in fixed batches."""
    with OpenVINO(dtype="float32", genai=False).build(Model(path="builtin:tiny")) as session:
        yield session


def _random_model(kind: str) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    torch.manual_seed(7)
    small: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": WINDOW,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": _WIDE_INIT,
    }
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small))
    if kind == "mistral":
        config = transformers.MistralConfig(**small, sliding_window=16)
        return transformers.MistralForCausalLM(config)
    assert kind == "gpt2"
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=WINDOW,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=_WIDE_INIT,
    )
    return transformers.GPT2LMHeadModel(config)


def _tokenizer() -> Any:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    specials = ["<unk>", "<s>", "</s>"]
    words = {word: at for at, word in enumerate(specials)}
    words |= {f"w{number}": number for number in range(len(specials), VOCAB)}
    built = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
