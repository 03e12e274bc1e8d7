"""Contexts and continuations as ids: the string never changes, and nothing empty is scored."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evalution_core import ContextLengthError, InvalidRequestError, LoglikelihoodRequest
from evalution_core.encoding import add_leading, encode_pair, encode_request, fit_pair
from evalution_enginekit import ByteTokenizer, TokenizerFile

BOS, EOS = 256, 257
TEXTS = st.text(st.sampled_from("ab é日 \n\t\u3000\xa0"), max_size=8)
IDS = st.lists(st.integers(0, 255), min_size=1, max_size=12)


class WithoutEnds(ByteTokenizer):
    """A tokenizer with neither a BOS nor an EOS token."""

    def __init__(self) -> None:
        super().__init__(adds_bos=False)
        self.bos_id = self.eos_id = None


@settings(deadline=None, max_examples=100)
@given(TEXTS, TEXTS, st.booleans())
def test_the_concatenation_never_changes(context: str, continuation: str, adds_bos: bool) -> None:
    tokenizer = ByteTokenizer(adds_bos=adds_bos)
    context_ids, continuation_ids = encode_pair(tokenizer, context, continuation)
    assert tokenizer.decode(context_ids + continuation_ids) == context + continuation
    assert tokenizer.decode(context_ids) == context.rstrip()
    assert context_ids


@settings(deadline=None, max_examples=100)
@given(st.text(st.sampled_from("thec at.\n"), max_size=12), st.integers(0, 12))
def test_the_concatenation_never_changes_where_merges_cross_the_cut(
    golden_tokenizers: dict[str, TokenizerFile], text: str, cut: int
) -> None:
    for name in ("bytelevel", "crossing"):
        tokenizer = golden_tokenizers[name]
        context_ids, continuation_ids = encode_pair(tokenizer, text[:cut], text[cut:])
        whole = tokenizer.encode(text)
        if text[:cut].strip():
            assert add_leading(tokenizer, whole)[len(context_ids) :] == continuation_ids
        else:
            assert continuation_ids == whole


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("", "ab", ([BOS], [97, 98])),
        (" ", "a", ([BOS], [32, 97])),
        ("\n\t", "", ([BOS], [10, 9])),
        ("a ", "b", ([BOS, 97], [32, 98])),
        ("", "<bos>a", ([BOS], [97])),
        ("<bos>a", "b", ([BOS, 97], [98])),
        ("<bos>", "b", ([BOS], [98])),
        ("", "<eos>a", ([BOS], [EOS, 97])),
    ],
)
def test_boundary_follows_lm_eval(
    context: str, continuation: str, expected: tuple[list[int], list[int]]
) -> None:
    assert encode_pair(ByteTokenizer(), context, continuation) == expected


def test_an_empty_context_is_conditioned_on_eos_where_there_is_no_bos() -> None:
    tokenizer = ByteTokenizer(adds_bos=False)
    tokenizer.bos_id = None
    assert encode_pair(tokenizer, "", "a") == ([EOS], [97])
    assert encode_pair(tokenizer, "", "<eos>a") == ([EOS], [97])


class Dropping(ByteTokenizer):
    """A tokenizer whose normalizer drops a character, as some do a byte order mark."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("\ufeff", ""))


@settings(deadline=None, max_examples=100)
@given(
    st.text(st.sampled_from("a \ufeff"), max_size=6),
    st.text(st.sampled_from("ab\ufeff"), max_size=6),
    st.booleans(),
    st.integers(1, 4),
)
@example(context="\ufeff", continuation="a", adds_bos=False, length=4)
def test_something_stands_before_the_first_scored_token(
    context: str, continuation: str, adds_bos: bool, length: int
) -> None:
    tokenizer = Dropping(adds_bos=adds_bos)
    before, after = encode_pair(tokenizer, context, continuation)
    whole = tokenizer.encode(context + continuation)
    assert (before + after)[-len(whole) :] == whole or not whole
    if 0 < len(after) <= length:
        pair = fit_pair(before, after, max_model_len=length, truncation="left")
        assert pair.span.start >= 1
        assert list(pair.span.token_ids[pair.span.start :]) == after


def test_a_context_without_ids_is_conditioned_as_an_empty_one() -> None:
    tokenizer = Dropping(adds_bos=False)
    assert encode_pair(tokenizer, "\ufeff ", "a") == ([BOS], [32, 97])
    assert encode_pair(tokenizer, "\ufeff", "<bos>a") == ([BOS], [97])
    tokenizer.bos_id = tokenizer.eos_id = None
    with pytest.raises(InvalidRequestError, match=r"BOS or EOS.*give context_input_ids"):
        encode_pair(tokenizer, "\ufeff", "a")


def test_an_empty_context_without_bos_and_eos_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"BOS or EOS.*give context_input_ids"):
        encode_pair(WithoutEnds(), "", "a")
    assert encode_pair(WithoutEnds(), "a", "b") == ([97], [98])


@settings(deadline=None, max_examples=50)
@given(IDS, IDS)
def test_ids_are_taken_as_they_are(context: list[int], continuation: list[int]) -> None:
    request = LoglikelihoodRequest(
        "not", " this", context_input_ids=context, continuation_input_ids=tuple(continuation)
    )
    assert encode_request(ByteTokenizer(), request, "not") == (context, continuation)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (LoglikelihoodRequest("a ", "b", context_input_ids=[5]), ([5], [98])),
        (LoglikelihoodRequest("a ", "b", continuation_input_ids=[5]), ([BOS, 97, 32], [5])),
        (LoglikelihoodRequest("", "b", continuation_input_ids=[5]), ([BOS], [5])),
        (LoglikelihoodRequest("x", "b", context_input_ids=[]), ([BOS], [98])),
        (LoglikelihoodRequest("", "", continuation_input_ids=[BOS, 5]), ([BOS], [5])),
    ],
)
def test_ids_on_one_side_only(
    request_: LoglikelihoodRequest, expected: tuple[list[int], list[int]]
) -> None:
    assert encode_request(ByteTokenizer(), request_, request_.context) == expected


@settings(deadline=None, max_examples=100)
@given(IDS, IDS, st.integers(1, 16))
def test_a_fitted_pair_keeps_the_continuation_and_feeds_at_most_the_window(
    context: list[int], continuation: list[int], max_model_len: int
) -> None:
    if len(continuation) > max_model_len:
        with pytest.raises(ContextLengthError, match="a continuation is never cut"):
            fit_pair(context, continuation, max_model_len=max_model_len, truncation="left")
        return
    pair = fit_pair(context, continuation, max_model_len=max_model_len, truncation="left")
    assert pair.span.token_ids[pair.span.start :] == continuation
    assert 1 <= len(pair.span.fed) <= max_model_len
    assert list(pair.span.token_ids) == (context + continuation)[pair.truncated_tokens :]
    assert pair.truncated_tokens == max(0, len(context + continuation) - max_model_len - 1)
    assert pair.span.start >= 1


def test_a_pair_that_must_not_be_cut_is_refused() -> None:
    with pytest.raises(
        ContextLengthError, match=r"5 tokens, 1 more than max_model_len=3 .*truncation='error'"
    ):
        fit_pair([1, 2, 3], [4, 5], max_model_len=3, truncation="error")
    assert fit_pair([1, 2], [4, 5], max_model_len=3, truncation="error").truncated_tokens == 0


def test_a_continuation_without_a_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"merged it into the context; give continuation"):
        fit_pair([1], [], max_model_len=3, truncation="left")
