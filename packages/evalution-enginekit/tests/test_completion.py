"""Tokens to a completion: where text and ids end, and what a stream may already tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evalution_core import GenerationOutput, TextDelta
from evalution_enginekit import ByteTokenizer, TokenEvent, TokenPrompt
from evalution_enginekit.generation import Completion

EOS, USER = 257, 258
TOKENIZER = ByteTokenizer()


def start(stop: tuple[str, ...] = (), *, max_new_tokens: int = 64, **options: Any) -> Completion:
    prompt = TokenPrompt(
        0, [256, 97], max_new_tokens, stop_ids=frozenset({EOS}), stop=stop, **options
    )
    return Completion(TOKENIZER, prompt)


def run(
    completion: Completion, token_ids: list[int], *, per_event: int = 1
) -> tuple[list[TextDelta], GenerationOutput]:
    """Feed the tokens as a runtime would, up to the end, with a delta after each event."""
    deltas: list[TextDelta | None] = []
    for begin in range(0, len(token_ids), per_event):
        if completion.finish is not None:
            break
        completion.take(TokenEvent(0, token_ids[begin : begin + per_event]))
        deltas.append(completion.delta())
    if completion.finish is None:
        completion.take(TokenEvent(0, finish="length"))
        deltas.append(completion.delta())
    return [delta for delta in deltas if delta is not None], completion.output("a", {}, 0)


def text_ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


STREAMS = st.lists(st.sampled_from([*b"ab", *"é日".encode(), USER, EOS]), max_size=24)
STOPS = st.lists(st.sampled_from(["a", "ab", "ba", "é", "bé", "日a", "<user>", "a<u"]), max_size=3)


@settings(deadline=None, max_examples=100)
@given(STREAMS, STOPS, st.integers(1, 4), st.integers(1, 24))
@example(token_ids=list("é".encode()), stops=["é"], per_event=1, limit=24)
@example(token_ids=list("éb".encode()), stops=["éb"], per_event=1, limit=24)
def test_deltas_joined_are_the_output(
    token_ids: list[int], stops: list[str], per_event: int, limit: int
) -> None:
    completion = start(tuple(stops), max_new_tokens=limit)
    deltas, output = run(completion, token_ids, per_event=per_event)
    assert "".join(delta.text for delta in deltas) == output.text
    assert [i for delta in deltas for i in delta.token_ids] == output.token_ids


class Merged(ByteTokenizer):
    """A byte-level vocabulary with merges, some of which end amid a character."""

    pieces = (b"a", b"ab\xe2", b"\x82", b"\xac", b"b\xe6\x97", b"\xa5a", b"\xff", b"abcdefgh\xc3")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        parts = [b"<user>" if i == USER else self.pieces[i] for i in token_ids]
        return b"".join(parts).decode("utf-8", "replace")


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from([*range(len(Merged.pieces)), USER]), max_size=24),
    st.lists(st.sampled_from(["a", "ab", "r><", "€", "日a", "<user>", "a<u"]), max_size=3),
)
@example(token_ids=[7, USER, 0, 0], stops=["aa"])
def test_tokens_begin_in_their_order_whatever_is_held_back(
    token_ids: list[int], stops: list[str]
) -> None:
    prompt = TokenPrompt(0, [0], 64, stop=tuple(stops), logprobs=0)
    completion = Completion(Merged(), prompt)
    for at, token_id in enumerate(token_ids):
        completion.take(TokenEvent(0, [token_id], [float(-at)]))
        completion.delta()
    completion.take(TokenEvent(0, finish="length"))
    assert completion._starts == sorted(completion._starts)
    output = completion.output("a", {}, 0)
    kept = output.token_ids or []
    assert kept == token_ids[: len(kept)]
    assert output.token_logprobs == [float(-at) for at in range(len(kept))]


@settings(deadline=None, max_examples=60)
@given(STREAMS, STOPS, st.integers(1, 4))
def test_the_output_is_what_a_whole_decode_would_cut(
    token_ids: list[int], stops: list[str], per_event: int
) -> None:
    _, output = run(start(tuple(stops)), token_ids, per_event=per_event)
    before_eos = token_ids[: token_ids.index(EOS)] if EOS in token_ids else token_ids
    spelled = TOKENIZER.decode(before_eos, skip_special_tokens=False)
    kept = output.token_ids or []
    assert kept == before_eos[: len(kept)]
    assert not any(stop in output.text for stop in stops if "<" not in stop and USER not in kept)
    if not any(stop in spelled for stop in stops):
        assert output.text == spelled.replace("<user>", "")
        assert kept == before_eos


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "token_ids"),
    [
        ("abcdef", ("cd",), "ab", "ab"),
        ("abcdef", ("x",), "abcdef", "abcdef"),
        ("ab<eos>cd", (), "ab", "ab"),
        ("ab<user>cd", (), "abcd", "ab<user>cd"),
        ("ab<user>cd", ("<user>",), "ab", "ab"),
        ("ab<user>cd", ("r>c",), "ab", "ab<user>"),
        ("  a \n", (), "  a \n", "  a \n"),
        ("a日b", ("日",), "a", "a"),
        ("ab", ("ab",), "", ""),
    ],
)
def test_where_text_and_ids_end(
    tokens: str, stop: tuple[str, ...], text: str, token_ids: str
) -> None:
    _, output = run(start(stop), text_ids(tokens))
    assert output.text == text
    assert output.token_ids == text_ids(token_ids)


def test_a_stop_across_tokens_cuts_inside_a_token() -> None:
    class Words(ByteTokenizer):
        def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
            return "".join(["Hello wor", "ld. Bye", "!"][token_id] for token_id in token_ids)

    prompt = TokenPrompt(0, [2], 8, stop=("d. B",), logprobs=0)
    completion = Completion(Words(), prompt)
    completion.take(TokenEvent(0, [0], logprobs=[-1.0]))
    assert completion.delta() == TextDelta("Hello wor", (0,))
    completion.take(TokenEvent(0, [1], logprobs=[-2.0]))
    assert completion.is_cut
    output = completion.output("", {}, 0)
    assert (output.text, output.token_ids) == ("Hello worl", [0, 1])
    assert output.token_logprobs == [-1.0, -2.0]
    assert (output.finish_reason, output.completion_tokens) == ("stop", 2)


def test_token_after_a_space_with_a_part_of_a_character_belongs_to_the_stop() -> None:
    class Bound(ByteTokenizer):
        def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
            parts = [b"b", b" \xf0\x9f", b"\x90", b"\xb1"]
            return b"".join(parts[token_id] for token_id in token_ids).decode("utf-8", "replace")

    completion = Completion(Bound(), TokenPrompt(0, [0], 8, stop=("🐱",)))
    for token_id in range(4):
        completion.take(TokenEvent(0, [token_id]))
    output = completion.output("", {}, 0)
    assert (output.text, output.token_ids) == ("b ", [0, 1])


def test_token_is_in_a_delta_once_all_of_its_text_is_certain() -> None:
    class Words(ByteTokenizer):
        def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
            return "".join(["", "Hello wor", "ld"][token_id] for token_id in token_ids)

    prompt = TokenPrompt(0, [0], 8, stop=("r!",))
    completion = Completion(Words(), prompt)
    completion.take(TokenEvent(0, [1]))
    assert completion.delta() == TextDelta("Hello wo", ())
    completion.take(TokenEvent(0, [2]))
    assert completion.delta() == TextDelta("rld", (1, 2))


@pytest.mark.parametrize(
    ("tokens", "options", "reason", "generated"),
    [
        ("abc", {"max_new_tokens": 3}, "length", 3),
        ("abcdef", {"max_new_tokens": 3}, "length", 3),
        ("ab<eos>", {"max_new_tokens": 3}, "stop", 3),
        ("abc", {"max_new_tokens": 3, "stop": ("c",)}, "stop", 3),
        ("ab", {}, "length", 2),
    ],
)
def test_finish_reason_and_token_count_are_reported(
    tokens: str, options: dict[str, Any], reason: str, generated: int
) -> None:
    _, output = run(start(**options), text_ids(tokens), per_event=8)
    assert (output.finish_reason, output.completion_tokens) == (reason, generated)
    assert output.prompt_tokens == 2


@pytest.mark.parametrize(
    ("stop", "event", "is_cut"),
    [
        ((), TokenEvent(0, [EOS]), False),
        ((), TokenEvent(0, [97, 97, 97]), False),
        ((), TokenEvent(0, [97], finish="stop"), False),
        (("a",), TokenEvent(0, [97]), True),
    ],
)
def test_only_a_stop_string_cuts_a_completion(
    stop: tuple[str, ...], event: TokenEvent, is_cut: bool
) -> None:
    completion = start(stop, max_new_tokens=3)
    completion.take(event)
    assert completion.finish is not None
    assert completion.is_cut is is_cut


def test_log_probabilities_run_beside_the_ids_that_are_kept() -> None:
    completion = start(("cd",), logprobs=1)
    ids = text_ids("abcd")
    tops = [{token_id: -0.5} for token_id in ids]
    completion.take(TokenEvent(0, ids, logprobs=[-1.0, -2.0, -3.0, -4.0], top_logprobs=tops))
    output = completion.output("", {}, 0)
    assert output.token_ids == ids[:2]
    assert output.token_logprobs == [-1.0, -2.0]
    assert output.top_logprobs == tops[:2]


def test_log_probabilities_not_asked_for_are_left_out() -> None:
    completion = start()
    completion.take(TokenEvent(0, [97, EOS], logprobs=[-1.0, -2.0], top_logprobs=[{}, {}]))
    output = completion.output("", {}, 0)
    assert output.token_logprobs is None
    assert output.top_logprobs is None


def test_log_probabilities_that_the_runtime_did_not_give_are_unknown() -> None:
    completion = start(logprobs=1)
    completion.take(TokenEvent(0, [97], logprobs=[-1.0]))
    completion.take(TokenEvent(0, [98, EOS]))
    output = completion.output("", {}, 0)
    assert output.token_ids == [97, 98]
    assert (output.token_logprobs, output.top_logprobs) == (None, None)


@pytest.mark.parametrize("last", [[EOS], [], [98]])
def test_what_the_runtime_reported_with_the_last_token_is_kept(last: list[int]) -> None:
    completion = start(max_new_tokens=2)
    completion.take(TokenEvent(0, [97], runtime={"cached_tokens": 3}))
    completion.take(TokenEvent(0, last, finish="stop", runtime={"stop_reason": "eos"}))
    runtime = completion.output("", {}, 0).runtime
    assert runtime == {"cached_tokens": 3, "stop_reason": "eos"}


def test_incomplete_character_is_held_back_and_replaced_at_the_end() -> None:
    completion = start()
    completion.take(TokenEvent(0, "日".encode()[:2]))
    assert completion.delta() is None
    completion.take(TokenEvent(0, [EOS]))
    assert completion.delta() == TextDelta("\ufffd", tuple("日".encode()[:2]))
    assert completion.output("", {}, 0).text == "\ufffd"


def test_metadata_prompt_and_truncation_come_back() -> None:
    metadata = {"row": 1}
    completion = start()
    completion.take(TokenEvent(0, [EOS]))
    output = completion.output("the prompt", metadata, 7)
    assert output.metadata is metadata
    assert (output.prompt, output.truncated_tokens) == ("the prompt", 7)
