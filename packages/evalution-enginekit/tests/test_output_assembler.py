"""Pieces of a completion: text and ids, stops across pieces, and what is told on the way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import EngineRuntimeError, GenerationOutput, GenerationRequest
from evalution_enginekit import ByteTokenizer, CompletionChunk, RequestPrompt
from evalution_enginekit.completion import OutputAssembler

TEXTS = st.text(alphabet="ab c\n", max_size=30)


def assembled(
    pieces: list[CompletionChunk], *, tokenizer: bool = False, **request: object
) -> tuple[GenerationOutput, str, list[int]]:
    """The output, and the text and ids of the deltas before it."""
    asked = GenerationRequest("prompt", **request)  # pyright: ignore[reportArgumentType]
    prompt = RequestPrompt(asked, "prompt", stop_ids=ByteTokenizer().eos_ids)
    assembly = OutputAssembler(prompt, ByteTokenizer() if tokenizer else None)
    text, ids = "", list[int]()
    for piece in pieces:
        if (delta := assembly.take(piece)) is not None:
            text += delta.text
            ids += delta.token_ids
        if assembly.is_cut:
            break
    return assembly.output(), text, ids


def text_pieces(text: str, cuts: list[int], finish: str = "length") -> list[CompletionChunk]:
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [
        CompletionChunk(text[a:b], token_ids=[ord(c) for c in text[a:b]])
        for a, b in pairwise(borders)
    ]
    return [*pieces, CompletionChunk("", [], finish=finish)]  # pyright: ignore[reportArgumentType]


@given(
    TEXTS,
    st.lists(st.integers(0, 99), max_size=8),
    st.lists(st.text("ab c", min_size=1), max_size=3),
)
def test_text_is_cut_as_a_whole_text_is(text: str, cuts: list[int], stops: list[str]) -> None:
    output, told, ids = assembled(text_pieces(text, cuts), stop=stops)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert output.text == told == expected
    assert output.finish_reason == ("stop" if ends else "length")
    assert output.token_ids in (None, ids)
    if not ends:
        assert output.token_ids == [ord(c) for c in text]


@given(TEXTS, st.lists(st.text("ab c", min_size=1), max_size=3))
def test_ids_read_as_their_text_does(text: str, stops: list[str]) -> None:
    pieces = [CompletionChunk(token_ids=[i]) for i in ByteTokenizer().encode(text)]
    by_ids, told, ids = assembled(
        [*pieces, CompletionChunk(token_ids=[], finish="length")], tokenizer=True, stop=stops
    )
    by_text, _, _ = assembled(text_pieces(text, list(range(len(text)))), stop=stops)
    assert (by_ids.text, by_ids.finish_reason) == (by_text.text, by_text.finish_reason)
    assert told == by_ids.text
    assert by_ids.token_ids == ids


def test_unfinished_completion_is_an_error() -> None:
    with pytest.raises(EngineRuntimeError, match="broke off before it was finished"):
        assembled([CompletionChunk("half an ans")])


def test_ids_without_text_need_a_tokenizer() -> None:
    with pytest.raises(EngineRuntimeError, match="no tokenizer"):
        assembled([CompletionChunk(token_ids=[1], finish="stop")])


def test_counts_may_come_after_the_end() -> None:
    output, _, _ = assembled(
        [
            CompletionChunk("yes", [7], finish="stop", runtime={"finish_reason": "eos"}),
            CompletionChunk(prompt_tokens=3, completion_tokens=2, runtime={"cached_tokens": 1}),
        ]
    )
    assert (output.prompt_tokens, output.completion_tokens) == (3, 2)
    assert output.runtime == {"finish_reason": "eos", "cached_tokens": 1}


def test_a_cut_here_makes_the_count_unknown() -> None:
    output, _, _ = assembled([CompletionChunk(token_ids=[98, 99], finish="length")], tokenizer=True)
    assert (output.text, output.completion_tokens) == ("bc", 2)
    output, _, _ = assembled([CompletionChunk("yes and no", completion_tokens=9)], stop=[" and"])
    assert (output.text, output.finish_reason, output.completion_tokens) == ("yes", "stop", None)
    assert output.token_ids is None


def test_ids_of_a_chunk_cut_by_a_stop_are_left_out() -> None:
    pieces = [CompletionChunk("ab", [1, 2]), CompletionChunk("cd", [3, 4], finish="length")]
    assert assembled(pieces, stop=["bc"])[0].token_ids is None
    single = [CompletionChunk("ab", [1]), CompletionChunk("cd", [2], finish="length")]
    assert assembled(single, stop=["bc"])[0].token_ids == [1]


def test_logprobs_are_given_only_beside_ids() -> None:
    known = CompletionChunk("a", [97], [-0.5], [{97: -0.5}], finish="stop")
    assert assembled([known], logprobs=1)[0].token_logprobs == [-0.5]
    unknown = CompletionChunk("a", None, [-0.5], finish="stop")
    assert assembled([unknown], logprobs=1)[0].token_logprobs is None


def test_prompt_of_runtime_rendered_messages_is_json() -> None:
    request = GenerationRequest(messages=[{"role": "user", "content": "é?"}])
    assembly = OutputAssembler(RequestPrompt(request), None)
    assembly.take(CompletionChunk("yes", finish="stop"))
    assert assembly.output().prompt == '[{"role": "user", "content": "é?"}]'
    assembly.take(CompletionChunk(prompt="<user>é?"))
    assert assembly.output().prompt == "<user>é?"
