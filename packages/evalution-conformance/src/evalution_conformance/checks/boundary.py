"""The boundary between context and continuation, by lm-eval's rules, and that of the window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evalution_conformance.assertions import (
    assert_has_values,
    assert_refused,
    assert_same_score,
    assert_scores,
    assert_tokens_agree,
)
from evalution_conformance.probes import PROMPTS, SENTENCE, WORDS, make_long_ids
from evalution_conformance.reference_values import load_reference_values, require_window
from evalution_conformance.subject import Subject
from evalution_conformance.suite import fills_the_window, needs
from evalution_core import (
    Capability,
    ContextLengthError,
    InvalidRequestError,
    LoglikelihoodRequest,
    TextCodec,
)

_ENDINGS = 4
"""Prompts to try, until the model doesn't end one at once."""


@needs(Capability.LOGLIKELIHOOD)
class BoundaryChecks:
    @needs(Capability.TOKEN_IDS)
    def test_an_empty_context_is_bos(self, subject: Subject) -> None:
        """An empty context is conditioned on BOS, else EOS."""
        text = SENTENCE.split()[0]
        if not subject.can_be_empty:
            request = LoglikelihoodRequest("", text)
            asked = "an empty context without BOS and EOS"
            assert_refused(lambda: subject.score(request), InvalidRequestError, asked)
            return
        (empty,) = subject.score(LoglikelihoodRequest("", text))
        expected = subject.score_ids([subject.conditioning_id], subject.codec.encode(text))
        assert_same_score(subject, empty, expected, "an empty context and BOS as context")

    def test_trailing_whitespace_belongs_to_the_continuation(self, subject: Subject) -> None:
        """All trailing whitespace of the context moves to the continuation."""
        moved, plain = subject.score(
            LoglikelihoodRequest("Tom and Ann \n", "walk"),
            LoglikelihoodRequest("Tom and Ann", " \nwalk"),
        )
        assert_same_score(subject, moved, plain, "whitespace at the end of the context")
        if not subject.can_be_empty:
            return
        blank, empty = subject.score(
            LoglikelihoodRequest(" \n", "walk"), LoglikelihoodRequest("", " \nwalk")
        )
        assert_same_score(subject, blank, empty, "a context of whitespace alone, which is empty")

    @needs(Capability.TOKEN_IDS)
    def test_a_pair_is_encoded_as_one_text(self, subject: Subject) -> None:
        """`context + continuation` is encoded jointly and cut at `len(encode(context))`."""
        codec = subject.codec
        for context, continuation in _crossing_pairs(codec):
            context_ids = subject.prompt_ids(context)
            continuation_ids = subject.prompt_ids(context + continuation)[len(context_ids) :]
            if continuation_ids and continuation_ids != codec.encode(continuation):
                (output,) = subject.score(LoglikelihoodRequest(context, continuation))
                expected = subject.score_ids(context_ids, continuation_ids)
                rule = f"{context!r} + {continuation!r}, where a token crosses the border"
                assert_same_score(subject, output, expected, rule)
                return
        pytest.skip("no probe has a token that crosses the border of context and continuation")

    def test_a_merged_continuation_is_refused(self, subject: Subject) -> None:
        """A continuation without a token of its own is an `InvalidRequestError`."""
        for context, continuation in _crossing_pairs(subject.codec):
            context_ids = subject.prompt_ids(context)
            if len(subject.prompt_ids(context + continuation)) <= len(context_ids):
                assert_refused(
                    lambda c=context, k=continuation: subject.score(LoglikelihoodRequest(c, k)),
                    InvalidRequestError,
                    f"{continuation!r} after {context!r}, which is one token with it,",
                )
                return
        pytest.skip("in no probe the tokenizer merges a continuation into its context")

    @needs(Capability.TOKEN_IDS)
    def test_a_context_has_one_bos(self, subject: Subject) -> None:
        """Exactly one BOS where the tokenizer adds one, decided on ids."""
        bos_id = subject.bos_id
        spelled = subject.codec.decode([bos_id], skip_special_tokens=False)
        if subject.codec.encode(spelled) != [bos_id]:
            pytest.skip("the tokenizer doesn't read BOS from text")
        prompt = PROMPTS[1]
        given, plain = subject.score(
            LoglikelihoodRequest(spelled + prompt, " sun"), LoglikelihoodRequest(prompt, " sun")
        )
        context_ids = [bos_id, *subject.codec.encode(prompt)]
        whole_ids = [bos_id, *subject.codec.encode(prompt + " sun")]
        expected = subject.score_ids(context_ids, whole_ids[len(context_ids) :])
        assert_same_score(subject, given, expected, "a context that spells its BOS")
        if subject.codec.leading_ids == (bos_id,):
            assert_same_score(subject, plain, expected, "a context that BOS is put before")

    @needs(Capability.TRUNCATION)
    @fills_the_window
    def test_a_long_context_is_cut_from_the_left(self, subject: Subject) -> None:
        """The last `max_model_len + 1` ids are kept, BOS goes, `truncated_tokens` counts."""
        context = (SENTENCE * (1 + subject.window // 8)).rstrip()
        context_ids = subject.prompt_ids(context)
        continuation_ids = subject.prompt_ids(context + " The")[len(context_ids) :]
        excess = len(context_ids) + len(continuation_ids) - (subject.window + 1)
        strict = LoglikelihoodRequest(context, " The", truncation="error")
        assert_refused(lambda: subject.score(strict), ContextLengthError, "truncation='error'")
        (cut,) = subject.score(LoglikelihoodRequest(context, " The"))
        assert cut.truncated_tokens == excess, (
            f"{excess} tokens don't fit, truncated_tokens is {cut.truncated_tokens}"
        )
        expected = subject.score_ids(context_ids[excess:], continuation_ids)
        assert expected.truncated_tokens == 0, "truncated_tokens counts where nothing was cut"
        assert_same_score(subject, cut, expected, "a cut context and what is left of it")

    @fills_the_window
    def test_a_continuation_is_never_cut(self, subject: Subject) -> None:
        """A continuation that can't fit is always an error: `ContextLengthError`."""
        continuation = " " + SENTENCE * (1 + subject.window // 8)
        request = LoglikelihoodRequest("Yes.", continuation)
        assert_refused(
            lambda: subject.score(request), ContextLengthError, "a continuation that can't fit"
        )


class WindowChecks:
    @needs(Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_a_full_window_scores_as_the_reference(self, subject: Subject) -> None:
        """A continuation as long as the window has the reference's value at every token."""
        case = require_window(subject)
        before = [subject.conditioning_id]
        assert_scores(subject, before, case.token_ids, case.token_logprobs, "")

    @needs(Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_a_full_context_is_fed_whole(self, subject: Subject) -> None:
        """Tokens after a context that fills the window with them have the reference's values."""
        case = require_window(subject)
        scored = max(1, len(case.token_ids) // 8)
        context_ids = [subject.conditioning_id, *case.token_ids[:-scored]]
        values = case.token_logprobs[-scored:]
        assert_scores(subject, context_ids, case.token_ids[-scored:], values, "")

    @needs(Capability.GENERATE)
    def test_a_full_prompt_is_completed_as_the_reference(self, subject: Subject) -> None:
        """A prompt that leaves room for `max_new_tokens` alone is fed whole."""
        fitting = {
            length: case
            for case in load_reference_values(subject).full_prompt
            if (length := len(case.prompt_ids or ()) + case.max_new_tokens) <= subject.window
        }
        if not fitting:
            pytest.skip(f"no reference prompt fits max_model_len={subject.window}")
        case = fitting[max(fitting)]
        rule = f"the completion of {len(case.prompt_ids or ())} tokens isn't the reference's"
        allowed = subject.reference_tolerance
        output = subject.complete(case.request())
        assert_tokens_agree(
            subject, output, case.text, case.token_ids, case.top2_gaps, rule, tolerance=allowed
        )

    @needs(Capability.GENERATE, Capability.LOGPROBS, Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_a_completion_after_a_full_prompt_scores_the_same(self, subject: Subject) -> None:
        """After a prompt that fills the window, generated tokens have the values of scoring."""
        room = subject.probe_length - subject.max_new_tokens
        for cut in range(_ENDINGS):
            prompt_ids = make_long_ids(subject.codec, room, seed=3)[: room - cut]
            output = subject.complete(subject.request("", input_ids=prompt_ids, logprobs=0))
            if output.token_ids:
                scored = subject.score_ids(prompt_ids, output.token_ids)
                rule = f"{len(output.token_ids)} tokens generated after {len(prompt_ids)} tokens"
                assert_has_values(subject, scored, output.token_logprobs or [], rule)
                return
        pytest.skip(f"the model ends each of {_ENDINGS} long prompts at once")


def _crossing_pairs(codec: TextCodec) -> Iterator[tuple[str, str]]:
    """Words cut within, where the parts have other tokens than the whole."""
    for word in WORDS:
        text = f"It is {word}"
        whole = codec.encode(text)
        for cut in range(len(text) - len(word), len(text)):
            context, continuation = text[:cut].rstrip(), text[len(text[:cut].rstrip()) :]
            if codec.encode(context) + codec.encode(continuation) != whole:
                yield context, continuation
