"""What parity sends as ids is what sessions make of the same text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution.parity.check import RequestEncoder
from evalution_core import (
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_core.builtins import builtin_path
from evalution_core.encoding import conditioning_id, encode_pair, encode_with_leading
from evalution_enginekit import ByteTokenizer, load_tokenizer
from evalution_enginekit.mock import Mock
from mutants.toy import MergingTokenizer

TOKENIZERS: dict[str, Any] = {
    "bytes": ByteTokenizer(),
    "bytes without BOS": ByteTokenizer(adds_bos=False),
    "merges": MergingTokenizer(),
    "tiny": load_tokenizer(Model("builtin:tiny"), builtin_path("builtin:tiny", "safetensors")),
}
words = st.sampled_from(["the", " the", " ", "\n", "an", "answer", "é", "<bos>", "garden", ". "])
texts = st.lists(words, max_size=6).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(context=texts, continuation=texts)
def test_pair_is_encoded_as_the_kit_does(name: str, context: str, continuation: str) -> None:
    tokenizer = TOKENIZERS[name]
    found = RequestEncoder(tokenizer).encode(LoglikelihoodRequest(context, continuation))
    before, after = encode_pair(tokenizer, context, continuation)
    if not continuation or not after:
        assert found is None
        return
    assert isinstance(found, LoglikelihoodRequest)
    assert (found.context_input_ids, found.continuation_input_ids) == (before, after)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(text=texts)
def test_prompt_is_encoded_as_the_kit_does(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    for request in (GenerationRequest(text), GenerationRequest("x", rendered_prompt=text)):
        found = RequestEncoder(tokenizer).encode(request)
        assert isinstance(found, GenerationRequest)
        expected = encode_with_leading(tokenizer, text) or [conditioning_id(tokenizer)]
        assert found.input_ids == expected


@settings(deadline=None)
@given(context=texts, continuations=st.lists(texts, min_size=1, max_size=4))
def test_session_scores_ids_as_it_scores_their_text(context: str, continuations: list[str]) -> None:
    session: Any = Mock().build(Model("m"))
    encoder = RequestEncoder(session.tokenizer)
    for continuation in continuations:
        request = LoglikelihoodRequest(context, continuation)
        if (encoded := encoder.encode(request)) is not None:
            by_text, by_ids = session.loglikelihood([request, encoded])
            assert by_ids == by_text


@settings(deadline=None)
@given(text=texts.filter(lambda text: bool(text.replace("<bos>", ""))))
def test_session_rolls_over_ids_as_over_their_text(text: str) -> None:
    session: Any = Mock(max_model_len=8).build(Model("m"))
    encoder = RequestEncoder(session.tokenizer)
    request = RollingLoglikelihoodRequest(text)
    by_ids = encoder.encode(request)
    assert session.loglikelihood_rolling([by_ids]) == session.loglikelihood_rolling([request])


def test_choices_of_a_question_share_their_context() -> None:
    encoder = RequestEncoder(ByteTokenizer())
    one, two = (encoder.encode(LoglikelihoodRequest("a question", c)) for c in (" b", " c"))
    assert isinstance(one, LoglikelihoodRequest)
    assert isinstance(two, LoglikelihoodRequest)
    assert one.context_input_ids is two.context_input_ids


MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest(messages=MESSAGES),
        GenerationRequest("a", input_ids=[1]),
        GenerationRequest(),
        LoglikelihoodRequest("", "a", messages=MESSAGES),
        LoglikelihoodRequest("a", "b", context_input_ids=[1]),
        LoglikelihoodRequest("a", "b", continuation_input_ids=[1]),
        LoglikelihoodRequest("a", ""),
        RollingLoglikelihoodRequest(input_ids=[1]),
        RollingLoglikelihoodRequest(""),
    ],
    ids=str,
)
def test_unencodable_request_is_left_to_the_engine(request_: Any) -> None:
    assert RequestEncoder(ByteTokenizer()).encode(request_) is None


def test_without_a_token_for_nothing_an_empty_context_is_left_to_the_engine() -> None:
    tokenizer = ByteTokenizer(adds_bos=False)
    tokenizer.bos_id = tokenizer.eos_id = None
    encoder = RequestEncoder(tokenizer)
    assert encoder.encode(LoglikelihoodRequest(" ", "a")) is None
    assert encoder.encode(GenerationRequest("")) is None
    with pytest.raises(InvalidRequestError, match="an empty context"):
        encode_pair(tokenizer, " ", "a")


def test_ids_replace_nothing_else_of_a_request() -> None:
    request = GenerationRequest("ab", stop=["\n"], max_new_tokens=3)
    found = RequestEncoder(ByteTokenizer()).encode(request)
    assert found == replace(request, input_ids=[256, 97, 98])
