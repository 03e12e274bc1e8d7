"""Text from tokens as they come: the pieces joined are the decoded whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_enginekit import ByteTokenizer, Tokenizer, TokenizerFile
from evalution_enginekit.generation import Detokenizer

PROMPT = "the cat"
TEXTS = st.text(st.sampled_from("the ca.\nàé日本\U0001f600\u200d"), max_size=24)


def pieces(tokenizer: Tokenizer, prompt: list[int], token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 259), max_size=30))
def test_any_bytes_read_as_they_decode_whole(token_ids: list[int]) -> None:
    tokenizer = ByteTokenizer()
    told = pieces(tokenizer, tokenizer.encode(PROMPT), token_ids)
    assert "".join(told) == tokenizer.decode(token_ids, skip_special_tokens=False)


@settings(deadline=None, max_examples=100)
@given(TEXTS)
def test_a_character_is_never_broken(text: str) -> None:
    tokenizer = ByteTokenizer()
    told = pieces(tokenizer, tokenizer.encode(PROMPT), tokenizer.encode(text))
    assert "".join(told) == text
    assert "\ufffd" not in "".join(told)


@settings(deadline=None, max_examples=100)
@given(TEXTS)
def test_text_of_trained_tokenizers_reads_as_it_was(
    golden_tokenizers: dict[str, TokenizerFile], text: str
) -> None:
    for name in ("bytelevel", "crossing"):
        tokenizer = golden_tokenizers[name]
        told = pieces(tokenizer, tokenizer.encode(PROMPT), tokenizer.encode(text))
        assert "".join(told) == text


@settings(deadline=None, max_examples=100)
@given(data=st.data())
@pytest.mark.parametrize("name", ["bytelevel", "unigram", "crossing"])
def test_any_ids_of_trained_tokenizers_read_as_they_decode_after_the_prompt(
    golden_tokenizers: dict[str, TokenizerFile], name: str, data: st.DataObject
) -> None:
    tokenizer = golden_tokenizers[name]
    ids = st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=16)
    token_ids = data.draw(ids)
    prompt = tokenizer.encode(PROMPT)
    whole = tokenizer.decode(prompt + token_ids, skip_special_tokens=False)
    assert "".join(pieces(tokenizer, prompt, token_ids)) == whole.removeprefix(PROMPT)


def test_a_space_bound_to_the_word_after_it_is_kept(
    golden_tokenizers: dict[str, TokenizerFile],
) -> None:
    tokenizer = golden_tokenizers["unigram"]
    prompt = tokenizer.encode("the cat")
    token_ids = tokenizer.encode("the cat sees")[len(prompt) :]
    assert "".join(pieces(tokenizer, prompt, token_ids)) == " sees"


def test_broken_bytes_are_released_after_a_while() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [97])
    told = [detokenizer.push(0xFF) for _ in range(100)]
    assert "".join(told).startswith("\ufffd" * 60)
    assert "".join(told) + detokenizer.flush() == "\ufffd" * 100


@pytest.mark.parametrize(("broken", "after"), [(1, ""), (1, " a"), (2, " a"), (3, "")])
def test_broken_character_leaves_the_one_before_it_alone(broken: int, after: str) -> None:
    """The library decodes a run of bytes as a whole: one byte too few breaks all of them."""
    library = pytest.importorskip("tokenizers", reason="needs evalution-enginekit[tokenizers]")
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581a": 256}
    built = library.Tokenizer(library.models.BPE(vocabulary, [], byte_fallback=True))
    built.decoder = library.decoders.Sequence(
        [
            library.decoders.Replace("\u2581", " "),
            library.decoders.ByteFallback(),
            library.decoders.Fuse(),
        ]
    )

    class Bytes(ByteTokenizer):
        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            return built.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    whole = list("\U0001f642".encode())
    ids = [*whole, *whole[:broken], *([256] if after else [])]
    assert "".join(pieces(Bytes(), [256], ids)) == f"\U0001f642{chr(0xFFFD) * broken}{after}"


def test_flush_without_held_bytes_adds_nothing() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [97])
    assert detokenizer.push(98) == "b"
    assert detokenizer.flush() == ""
