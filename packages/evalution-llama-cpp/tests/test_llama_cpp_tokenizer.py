"""llama.cpp's tokenizer gives the ids of the model's other files, and text byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_enginekit import Tokenizer, TokenizerFile
from evalution_llama_cpp import LlamaCpp

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

THEIRS = TokenizerFile(builtin_path("builtin:tiny", "safetensors") / "tokenizer.json")
pieces = st.lists(
    st.sampled_from(["The", " cat", "  ", "\n", "'s", "<|user|>", "<|eos|>", "日本", "12", " ?"])
    | st.text(alphabet=st.characters(max_codepoint=0x2FFFF, exclude_categories=["Cs"]), max_size=4)
)


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with LlamaCpp(device="cpu", n_threads=1).build(Model("builtin:tiny")) as session:
        yield session.tokenizer


def test_special_tokens_are_those_of_the_model(tokenizer: Tokenizer) -> None:
    for name in ("leading_ids", "bos_id", "eos_id", "eos_ids", "special_ids"):
        assert getattr(tokenizer, name) == getattr(THEIRS, name)


@settings(deadline=None, max_examples=200)
@given(parts=pieces)
def test_decoded_text_is_whole(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text


@settings(deadline=None, max_examples=200)
@given(parts=st.lists(st.sampled_from([*"aé1 ?", "The", " cat", "'ll", "\n\n", "<|bos|>", "🙂"])))
def test_ids_are_those_of_tokenizer_json(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    assert tokenizer.encode(text) == THEIRS.encode(text)


def test_decoding_loses_no_character(tokenizer: Tokenizer) -> None:
    for text in ("naïve 🙂 日本", "def f( x ) :\n\treturn x !", " leading and trailing "):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_id_that_is_no_token_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([10**6, -1]) == ""


def test_ends_by_name_are_recorded_and_can_be_left_out(random_gguf: Callable[..., Path]) -> None:
    model = Model(str(random_gguf(vocabulary="ends of turn")))
    found: dict[bool, tuple[set[int], dict[str, int]]] = {}
    for by_name in (True, False):
        with LlamaCpp(device="cpu", n_threads=1, ends_by_name=by_name).build(model) as session:
            execution = session.describe_execution()
            found[by_name] = set(execution["eos_ids"]), execution["ends_by_name"]
    named = found[True][1]
    assert set(named) == {"<|im_end|>", "<|end|>"}
    assert found[True][0] == {2, *named.values()}
    assert found[False] == ({2}, {})
