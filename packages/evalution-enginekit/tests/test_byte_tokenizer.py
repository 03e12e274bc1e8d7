"""The tokenizer without a file."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core.encoding import add_leading, encode_with_leading
from evalution_enginekit import ByteTokenizer
from evalution_enginekit.tokenizer import find_leading_ids

TOKENIZER = ByteTokenizer()


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=20).filter(lambda text: not re.search("<(bos|eos|user|assistant)>", text)))
def test_encoded_text_decodes_to_itself(text: str) -> None:
    token_ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(token_ids) == text
    assert all(token_id < 256 for token_id in token_ids)


def test_special_tokens_that_are_spelled_out_are_their_own_ids() -> None:
    token_ids = TOKENIZER.encode("a<bos><eos>é<user><assistant><BOS>")
    assert token_ids == [97, 256, 257, *"é".encode(), 258, 259, *b"<BOS>"]
    assert TOKENIZER.decode(token_ids) == "aé<BOS>"
    spelled = TOKENIZER.decode(token_ids, skip_special_tokens=False)
    assert spelled == "a<bos><eos>é<user><assistant><BOS>"


def test_byte_tokenizer_declares_its_ids() -> None:
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.leading_ids) == (256, 257, (256,))
    assert TOKENIZER.special_ids == {256, 257, 258, 259}
    assert TOKENIZER.vocabulary_size == 260
    assert ByteTokenizer(adds_bos=False).leading_ids == ()
    assert ByteTokenizer(has_template=False).chat_template is None


@pytest.mark.parametrize(
    ("text", "token_ids"), [("a", [256, 97]), ("<bos>a", [256, 97]), ("", [256])]
)
def test_leading_ids_are_never_doubled(text: str, token_ids: list[int]) -> None:
    assert encode_with_leading(TOKENIZER, text) == token_ids
    assert add_leading(TOKENIZER, token_ids) == token_ids


@pytest.mark.parametrize(
    ("whole", "alone", "before"),
    [
        ([1, 5, 6], [5, 6], (1,)),
        ([1, 2, 5, 6, 3], [5, 6], (1, 2)),
        ([5, 6, 3], [5, 6], ()),
        ([5, 6], [5, 6], ()),
        ([9, 9], [5], ()),
    ],
)
def test_leading_ids_are_those_before_the_plain_encoding(
    whole: list[int], alone: list[int], before: tuple[int, ...]
) -> None:
    assert find_leading_ids(whole, alone) == before
