"""Requests don't show in others: beside them in a batch, or after them in a cache."""

from __future__ import annotations

import math

from evalution_conformance.assertions import (
    assert_same_score,
    assert_same_values,
    assert_scores,
)
from evalution_conformance.probes import PAIRS, PROMPTS, change_tokens, make_long_text
from evalution_conformance.reference_values import WindowCase, require_window
from evalution_conformance.subject import Subject, open_stream, read_one
from evalution_conformance.suite import needs
from evalution_core import Capability, GenerationRequest, LoglikelihoodRequest

_ENDING = 16
"""Tokens at the end of a probe that are scored."""
_SAME = 1e-9
"""A changed token moves the sum of what follows by more."""


class IsolationChecks:
    @needs(Capability.LOGLIKELIHOOD)
    def test_a_long_neighbour_changes_no_score(self, subject: Subject) -> None:
        """Beside a pair that fills the window, short pairs have the scores that they have alone."""
        context = make_long_text(subject.codec, subject.probe_length, seed=4)
        pairs = [PAIRS[0], (context, " The"), *PAIRS[1:]]
        requests = [LoglikelihoodRequest(*pair) for pair in pairs]
        for index, (request, output) in enumerate(
            zip(requests, subject.score(*requests), strict=True)
        ):
            (alone,) = subject.score(request)
            assert_same_score(subject, output, alone, f"pair {index} beside a long one and alone")

    @needs(Capability.LOGLIKELIHOOD)
    def test_choices_are_scored_apart(self, subject: Subject) -> None:
        """A choice that begins another, or is also another context's, has a score of its own."""
        choices = (" 7 is the", " 7", " 7 is", " 8", " 7 is the answer")
        requests = [
            LoglikelihoodRequest(context, choice) for context in PROMPTS[:2] for choice in choices
        ]
        for request, output in zip(requests, subject.score(*requests), strict=True):
            (alone,) = subject.score(request)
            rule = f"{request.continuation!r} after {request.context!r} among choices and alone"
            assert_same_score(subject, output, alone, rule)

    @needs(Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_a_seen_beginning_changes_no_score(self, subject: Subject) -> None:
        """Tokens after a changed one are scored with it, though what is around it was seen."""
        case = require_window(subject)
        last, *others = change_tokens(_read_context(subject, case))
        changed = subject.score_ids(last, case.token_ids[-_ENDING:])
        assert abs(changed.logprob - math.fsum(case.token_logprobs[-_ENDING:])) > _SAME, (
            "a context with another last token scores as the one that was seen before"
        )
        for context_ids in others:
            subject.score_ids(context_ids, case.token_ids[-_ENDING:])
        _assert_ending(subject, case, " that were scored with another token")

    @needs(Capability.GENERATE, Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_a_completion_changes_no_score(self, subject: Subject) -> None:
        """A score doesn't depend on what a completion of a similar prompt left behind."""
        case = require_window(subject)
        for changed_ids in change_tokens(_read_context(subject, case)):
            subject.complete(GenerationRequest(input_ids=changed_ids, max_new_tokens=2))
        _assert_ending(subject, case, " that were completed with another token")

    @needs(Capability.GENERATE, Capability.LOGPROBS)
    def test_a_batch_generates_with_the_logprobs_of_its_requests_alone(
        self, subject: Subject
    ) -> None:
        """Log-probabilities of generated tokens don't depend on batch neighbours."""
        length = subject.probe_length - subject.max_new_tokens
        prompts = [*PROMPTS, make_long_text(subject.codec, length, seed=5), *reversed(PROMPTS)]
        requests = [subject.request(prompt, logprobs=0) for prompt in prompts]
        for index, (request, output) in enumerate(
            zip(requests, subject.generate(*requests), strict=True)
        ):
            rule = f"request {index} in a batch and alone"
            assert_same_values(subject, output, subject.complete(request), rule)

    @needs(Capability.GENERATE, Capability.LOGLIKELIHOOD)
    def test_an_open_stream_changes_no_score(self, subject: Subject) -> None:
        """Beside completions that are running, pairs have the scores that they have alone."""
        pairs = [LoglikelihoodRequest(*pair) for pair in PAIRS]
        expected = subject.score(*pairs)
        requests = ((n, subject.request(PROMPTS[n % len(PROMPTS)])) for n in range(1_000_000))
        with open_stream(subject, requests) as stream:
            read_one(stream)
            found = subject.score(*pairs)
        for output, alone in zip(found, expected, strict=True):
            assert_same_score(subject, output, alone, "a pair beside running completions and alone")


def _read_context(subject: Subject, case: WindowCase) -> list[int]:
    return [subject.conditioning_id, *case.token_ids[:-_ENDING]]


def _assert_ending(subject: Subject, case: WindowCase, rule: str) -> None:
    context_ids, values = _read_context(subject, case), case.token_logprobs[-_ENDING:]
    assert_scores(subject, context_ids, case.token_ids[-_ENDING:], values, rule)
