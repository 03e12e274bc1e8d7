"""Requests to ids: one BOS, room for what is generated, cuts that are counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    ContextLengthError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit import ByteTokenizer, TokenSpan
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.request_encoding import RequestEncoder, RequestValidator, catch_failure

BOS, EOS, USER, ASSISTANT = 256, 257, 258, 259
CHAT = [{"role": "user", "content": "hi"}]


def prepared(
    max_model_len: int = 32, model_vocabulary: int | None = None, **options: Any
) -> RequestEncoder:
    admission = RequestValidator("Toy", frozenset(Capability))
    return RequestEncoder(admission, ByteTokenizer(**options), max_model_len, model_vocabulary)


def ask(prompt: str | None = None, **options: Any) -> GenerationRequest:
    return GenerationRequest(prompt, **{"max_new_tokens": 4, **options})


@pytest.mark.parametrize(
    ("request_", "adds_bos", "token_ids", "text"),
    [
        (ask("ab"), True, [BOS, 97, 98], "ab"),
        (ask("ab"), False, [97, 98], "ab"),
        (ask("<bos>ab"), True, [BOS, 97, 98], "<bos>ab"),
        (ask(""), True, [BOS], ""),
        (ask(""), False, [BOS], ""),
        (ask(rendered_prompt="<bos>ab"), True, [BOS, 97, 98], "<bos>ab"),
        (ask(rendered_prompt="ab"), True, [BOS, 97, 98], "ab"),
        (ask(messages=CHAT), True, [BOS, USER, 104, 105, ASSISTANT], "<user>hi<assistant>"),
        (ask(messages=CHAT, add_generation_prompt=False), True, [BOS, USER, 104, 105], "<user>hi"),
        (ask(input_ids=(97, 98)), True, [97, 98], "ab"),
        (ask("c", messages=CHAT, rendered_prompt="r", input_ids=[97]), True, [97], "a"),
        (ask("c", messages=CHAT, rendered_prompt="r"), True, [BOS, 114], "r"),
        (ask("c", messages=CHAT), False, [USER, 104, 105, ASSISTANT], "<user>hi<assistant>"),
    ],
)
def test_the_first_form_given_is_encoded_with_one_bos(
    request_: GenerationRequest, adds_bos: bool, token_ids: list[int], text: str
) -> None:
    job = prepared(adds_bos=adds_bos).encode_generation(request_)
    assert list(job.prompt.token_ids) == token_ids
    assert job.prompt_text == text


def test_an_empty_prompt_without_bos_and_eos_is_refused() -> None:
    tokenizer = ByteTokenizer(adds_bos=False)
    tokenizer.bos_id = tokenizer.eos_id = None
    preparation = RequestEncoder(RequestValidator("Toy", frozenset(Capability)), tokenizer, 32)
    with pytest.raises(InvalidRequestError, match="an empty context needs a BOS or EOS token"):
        preparation.encode_generation(ask(""))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(1, 40))
def test_a_prompt_is_cut_to_leave_room(length: int, max_new_tokens: int) -> None:
    token_ids = [i % 250 for i in range(length)]
    request = ask(input_ids=token_ids, max_new_tokens=max_new_tokens)
    room = 32 - max_new_tokens
    if room < 1:
        with pytest.raises(ContextLengthError, match="leaves no room for a prompt"):
            prepared().encode_generation(request)
        return
    job = prepared().encode_generation(request)
    assert list(job.prompt.token_ids) == token_ids[-room:]
    assert job.truncated_tokens == length - len(job.prompt.token_ids)
    assert len(job.prompt.token_ids) + max_new_tokens <= 32


def test_a_prompt_that_must_not_be_cut_is_refused() -> None:
    request = ask("a" * 40, truncation="error")
    with pytest.raises(
        ContextLengthError, match=r"the prompt has 41 tokens; .* room for 28, and truncation='erro"
    ):
        prepared().encode_generation(request)
    assert prepared(64).encode_generation(request).truncated_tokens == 0


def test_settings_of_samples_are_ignored_without_sampling() -> None:
    unheeded = ask("a", temperature=0.7, top_p=0.5, top_k=9, seed=3)
    prompt = prepared().encode_generation(unheeded).prompt
    assert prompt == prepared().encode_generation(ask("a")).prompt
    sampled = prepared().encode_generation(ask("a", do_sample=True, temperature=0.7, seed=3)).prompt
    assert (sampled.do_sample, sampled.temperature, sampled.seed) == (True, 0.7, 3)


def test_top_k_is_at_most_the_vocabulary_as_runtimes_refuse_more() -> None:
    encoder = prepared(model_vocabulary=300)
    for asked, found in [(0, 0), (9, 9), (1 << 70, 300)]:
        request = ask("a", do_sample=True, temperature=1.0, top_k=asked)
        assert encoder.encode_generation(request).prompt.top_k == found


def test_end_tokens_end_a_completion_unless_ignored() -> None:
    assert prepared().encode_generation(ask("a")).prompt.stop_ids == {EOS}
    assert prepared().encode_generation(ask("a", ignore_eos=True)).prompt.stop_ids == frozenset()


def test_messages_without_a_template_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"this model has none; give rendered_prompt, or"):
        prepared(has_template=False).encode_generation(ask(messages=CHAT))
    with pytest.raises(InvalidRequestError, match="messages need a chat template"):
        prepared(has_template=False).encode_loglikelihood(
            LoglikelihoodRequest("", "b", messages=CHAT)
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.encode_generation(ask(input_ids=[260])),
        lambda p: p.encode_loglikelihood(LoglikelihoodRequest("a", continuation_input_ids=[260])),
        lambda p: p.encode_loglikelihood(LoglikelihoodRequest("", "a", context_input_ids=[260])),
        lambda p: p.encode_rolling(RollingLoglikelihoodRequest(input_ids=[1, 260])),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(call: Any) -> None:
    with pytest.raises(
        InvalidRequestError, match="token id 260 is outside the vocabulary of 260 tokens"
    ):
        call(prepared())


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.encode_generation(ask("a<user>")),
        lambda p: p.encode_generation(ask(rendered_prompt="<user>")),
        lambda p: p.encode_generation(ask(input_ids=[USER])),
        lambda p: p.encode_loglikelihood(LoglikelihoodRequest("<user>", "a")),
        lambda p: p.encode_loglikelihood(LoglikelihoodRequest("a", "<user>")),
        lambda p: p.encode_rolling(RollingLoglikelihoodRequest("a<user>")),
    ],
)
def test_ids_that_the_model_has_no_embedding_for_are_refused(call: Any) -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"258 is one of the tokenizer's 260 and outside the model's vocabulary of 258; set",
    ):
        call(prepared(model_vocabulary=USER))


def test_embedded_id_without_a_token_is_accepted() -> None:
    encoder = prepared(model_vocabulary=264)
    job = encoder.encode_loglikelihood(LoglikelihoodRequest("a", continuation_input_ids=[263]))
    assert job.span.token_ids[-1] == 263
    with pytest.raises(InvalidRequestError, match="id 264 is outside the vocabulary of 264 tokens"):
        encoder.encode_generation(ask(input_ids=[264]))


def test_the_id_that_stands_for_nothing_needs_an_embedding_too() -> None:
    for call in (
        lambda p: p.encode_generation(ask("")),
        lambda p: p.encode_loglikelihood(LoglikelihoodRequest("", "a")),
        lambda p: p.encode_rolling(RollingLoglikelihoodRequest("a")),
    ):
        with pytest.raises(InvalidRequestError, match="token id 256 is one of the tokenizer's"):
            call(prepared(model_vocabulary=256, adds_bos=False))


def test_a_beam_search_with_log_probabilities_is_refused() -> None:
    with pytest.raises(
        UnsupportedRequestError, match=r"num_beams=2 with logprobs=0: .* ask for one of the two"
    ):
        prepared().encode_generation(ask("a", num_beams=2, logprobs=0))
    assert prepared().encode_generation(ask("a", num_beams=2)).prompt.num_beams == 2


def test_messages_replace_the_context_and_whitespace_moves() -> None:
    job = prepared().encode_loglikelihood(LoglikelihoodRequest("", " yes", messages=CHAT))
    assert job.span == TokenSpan([BOS, USER, 104, 105, ASSISTANT, *b" yes"], 5)


def test_an_answer_behind_an_open_thought_is_refused() -> None:
    class Thinking(ByteTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.chat_template = ChatTemplate("{{ messages[0].content }}<think> ")

    preparation = RequestEncoder(RequestValidator("Toy", frozenset(Capability)), Thinking(), 64)
    with pytest.raises(InvalidRequestError, match=r"ends the prompt with <think>, so an answer"):
        preparation.encode_loglikelihood(LoglikelihoodRequest("", "B", messages=CHAT))
    whole = LoglikelihoodRequest("", "so</think>B", messages=CHAT)
    assert len(preparation.encode_loglikelihood(whole).span.token_ids) > len("hiso</think>B")
    assert preparation.encode_generation(ask(messages=CHAT)).prompt_text == "hi<think> "


def test_given_context_ids_win_over_messages() -> None:
    request = LoglikelihoodRequest("", "y", context_input_ids=[7], messages=CHAT)
    assert prepared(has_template=False).encode_loglikelihood(request).span == TokenSpan([7, 121], 1)


def test_a_failure_keeps_the_requests_metadata() -> None:
    failures = [
        catch_failure(prepared().encode_generation)(GenerationRequest(metadata={"row": 1})),
        catch_failure(prepared().encode_loglikelihood)(
            LoglikelihoodRequest("a", "", metadata={"row": 1})
        ),
    ]
    for failure in failures:
        assert isinstance(failure, RequestFailure)
        assert failure.metadata == {"row": 1}
    odd = catch_failure(prepared().encode_generation)("not a request")
    assert isinstance(odd, RequestFailure)
    assert odd.metadata == {}


def test_a_rolling_text_is_conditioned_on_its_bos() -> None:
    windows = prepared(2).encode_rolling(RollingLoglikelihoodRequest("<bos>abc"))
    assert windows == [TokenSpan([BOS, 97, 98], 1), TokenSpan([97, 98, 99], 2)]
