"""Tokenizers read without Transformers: the rules of their classes, and a notice where none are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, Model
from evalution_enginekit import TokenizerFile, load_tokenizer
from evalution_enginekit import tokenizer as module
from evalution_enginekit.tokenizer import find_difference
from evalution_enginekit.tokenizer_classes import find_class

pytest.importorskip("tokenizers", reason="needs evalution-enginekit[tokenizers]")


def read(folder: Path, model_type: str = "llama", **settings: Any) -> TokenizerFile:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": None, "pad_token": None}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, **settings}))
    return TokenizerFile(folder / "tokenizer.json")


def split(tokenizer: TokenizerFile, text: str) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("declared", "model_type", "is_byte_level", "taken"),
    [
        ("LlamaTokenizerFast", "llama", False, "LlamaTokenizer"),
        ("LlamaTokenizerFast", "deepseek_v3", True, "TokenizersBackend"),
        ("LlamaTokenizer", "mistral", False, "TokenizersBackend"),
        ("LlamaTokenizerFast", "phi3", False, "TokenizersBackend"),
        ("PreTrainedTokenizerFast", "qwen2", True, "Qwen2Tokenizer"),
        ("PreTrainedTokenizerFast", "qwen3", True, "PreTrainedTokenizer"),
        ("GPT2Tokenizer", "olmo2", True, "TokenizersBackend"),
        ("Qwen2Tokenizer", "llama", True, "Qwen2Tokenizer"),
        (None, "gpt_neox", True, "GPTNeoXTokenizer"),
        (None, "llama", True, "TokenizersBackend"),
        (None, None, True, "TokenizersBackend"),
    ],
)
def test_model_and_configuration_decide_on_the_class(
    declared: str | None, model_type: str | None, is_byte_level: bool, taken: str
) -> None:
    found = find_class(
        {"tokenizer_class": declared}, {"model_type": model_type}, is_byte_level=is_byte_level
    )
    assert found == taken


def test_qwen2_splits_digits_whatever_its_file_says(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["12"] = max(vocabulary.values()) + 1
    content["model"]["merges"].append(["1", "2"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert split(read(folder), "12") == ["12"]
    assert split(read(folder, "qwen2"), "12") == ["1", "2"]


def test_add_prefix_space_counts_in_the_classes_that_heed_it(folder: Path) -> None:
    for model_type in ("qwen2", "gpt2"):
        plain, spaced = (read(folder, model_type, add_prefix_space=flag) for flag in (False, True))
        assert plain.encode("the") != plain.encode(" the")
        assert spaced.encode("the") == spaced.encode(" the") == plain.encode(" the")
    assert read(folder, add_prefix_space=True).encode("the") == plain.encode("the")


def test_configured_tokens_are_added(folder: Path) -> None:
    size = read(folder).vocabulary_size
    added: list[dict[str, Any]] = [
        {"additional_special_tokens": ["<a>"]},
        {"extra_special_tokens": ["<a>"]},
        {"extra_special_tokens": {"image_token": "<a>"}},
        {"image_token": "<a>"},
    ]
    for settings in added:
        tokenizer = read(folder, **settings)
        assert tokenizer.encode("<a>") == [size]
        assert size in tokenizer.special_ids


@pytest.fixture
def t5_folder(tmp_path: Path) -> Path:
    texts = ("<pad>", "</s>", "<unk>", "\u2581a")
    model = {"type": "Unigram", "unk_id": 2, "vocab": [[text, 0.0] for text in texts]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    return tmp_path


def test_extra_ids_are_tokens_of_t5_alone(folder: Path, t5_folder: Path) -> None:
    assert read(folder, extra_ids=100).vocabulary_size == read(folder).vocabulary_size
    named = {"tokenizer_class": "T5Tokenizer", "bos_token": None}
    sizes = [
        read(t5_folder, "t5", **named, **extra).vocabulary_size for extra in ({}, {"extra_ids": 7})
    ]
    assert sizes == [104, 11]


@pytest.mark.parametrize("count", [10_001, 3_000_000_000, "7", None])
def test_many_extra_ids_are_refused(t5_folder: Path, count: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(t5_folder, "t5", tokenizer_class="T5Tokenizer", extra_ids=count)
    assert str(refused.value) == (
        f"the tokenizer's configuration has extra_ids {count!r}; it must be a whole number up to "
        "10,000: copy the model's tokenizer again"
    )


def test_unknown_class_is_named_in_the_notice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_has_transformers", lambda: False)
    tokenizer = read(folder, tokenizer_class="AcmeTokenizer")
    for found in (tokenizer, load_tokenizer(Model("m"), folder)):
        assert found.source == "tokenizer.json"
        assert found.notice == (
            f"{folder / 'tokenizer.json'} was read as it stands, and its class AcmeTokenizer may "
            f"have rules of its own, by which the ids would be others; install transformers to "
            f"read it by them"
        )
    assert read(folder, tokenizer_class="PreTrainedTokenizerFast").notice is None


def test_difference_of_readings_is_the_first_text_or_fact(folder: Path) -> None:
    plain = read(folder)
    assert find_difference(plain, plain) is None
    spaced = find_difference(plain, read(folder, "gpt2", add_prefix_space=True))
    assert spaced is not None
    assert spaced.startswith("'The quick brown fox' is [")
    plain = read(folder)
    ended = TokenizerFile(folder / "tokenizer.json", declared_eos=[5])
    assert find_difference(plain, ended) == "eos_ids is [1, 5] there and [1] here"
    templated = read(folder, chat_template="a")
    assert find_difference(plain, templated) == (
        "one of them has a chat template, the other has none"
    )
    assert find_difference(read(folder, chat_template="b"), templated) == (
        "their chat templates are different texts"
    )
    other = read(folder, chat_template="a", cls_token="<s>")
    assert find_difference(templated, other) == "their chat templates print another cls_token"


def test_template_folders_go_before_the_configuration(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    named = folder / "additional_chat_templates" / "rag.jinja"
    named.write_text("rag")
    assert read(folder, chat_template="config").chat_template is None
    (folder / "chat_template.jinja").write_text("file")
    for text in ("file", "named"):
        template = read(folder, chat_template="config").chat_template
        assert template is not None
        assert template.source == text
        named.with_name("default.jinja").write_text("named")
