"""The most likely tokens at the positions of scored texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evalution_conformance.assertions import Scored, assert_refused, assert_same_logprobs
from evalution_conformance.probes import PAIRS, PROMPTS, TEXTS, make_long_text
from evalution_conformance.reference_values import open_reference
from evalution_conformance.rows import allow_rounding, assert_same_rows, read_rows
from evalution_conformance.subject import Subject
from evalution_conformance.suite import fills_the_window, needs
from evalution_core import (
    Capability,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.requests import DistributionRequest, TopLogprobs

_COUNT, _FEWER = 10, 5
_NO_COUNTS: Sequence[Any] = (0, -1, True, "5")


@needs(Capability.PROMPT_TOP_LOGPROBS, Capability.LOGLIKELIHOOD)
class TopLogprobsChecks:
    def test_top_logprobs_are_the_most_likely_tokens(self, subject: Subject) -> None:
        """At each scored position k tokens come, best first; asking for them changes no score."""
        plain = [LoglikelihoodRequest(*pair) for pair in PAIRS]
        count = _find_count(subject)
        asked = [replace(request, top_logprobs=count) for request in plain]
        for output, alone in zip(subject.score(*asked), subject.score(*plain), strict=True):
            _require_top(subject, output, count)
            assert alone.top_logprobs is None, "top_logprobs came and weren't asked for"
            found, known = (o.token_logprobs or [o.logprob] for o in (output, alone))
            _assert_same(subject, found, known, "scores with top_logprobs and without")

    @needs(Capability.TOKEN_IDS)
    def test_top_logprobs_are_the_scores_of_their_tokens(self, subject: Subject) -> None:
        """Each of them, scored in place of the token that came, has that value, as in its row."""
        *before, last = subject.prompt_ids(PROMPTS[0])
        count = _find_count(subject)
        request = LoglikelihoodRequest(
            context_input_ids=before, continuation_input_ids=[last], top_logprobs=count
        )
        (output,) = subject.score(request)
        (top,) = _require_top(subject, output, count)
        scores = [subject.score_ids(before, [token_id]).logprob for token_id in top]
        _assert_same(subject, list(top.values()), scores, "top_logprobs and their scores")
        if not subject.declares(Capability.DISTRIBUTIONS):
            return
        ((row,),) = read_rows(subject.session, [DistributionRequest([*before, last], len(before))])
        best = sorted(row, reverse=True)[:count]
        _assert_same(subject, list(top.values()), best, "top_logprobs and the row's largest values")
        (output,) = subject.score(replace(request, top_logprobs=len(row) + 1))
        (whole,) = _require_top(subject, output, len(row))
        _assert_same(
            subject, [whole[i] for i in range(len(row))], row, "top_logprobs of all tokens"
        )

    def test_top_logprobs_equal_the_reference(self, subject: Subject) -> None:
        """Same text in, same most likely tokens out, where rounding doesn't decide."""
        count = _find_count(subject)
        requests = [LoglikelihoodRequest(*pair, top_logprobs=count) for pair in PAIRS]
        found = [_require_top(subject, output, count) for output in subject.score(*requests)]
        with open_reference(subject, Capability.PROMPT_TOP_LOGPROBS) as reference:
            expected = reference.loglikelihood(requests)
        tolerance = max(subject.reference_tolerance, allow_rounding(subject))
        for pair, tops, output in zip(PAIRS, found, expected, strict=True):
            for at, (top, known) in enumerate(zip(tops, output.top_logprobs or [], strict=True)):
                rule = f"position {at} of {pair[1]!r} after {pair[0][-40:]!r} against the reference"
                values, expected_values = [*top.values()], [*known.values()]
                assert_same_rows([values], [expected_values], rule, tolerance)
                for token_id, value in top.items():
                    nearest = known.get(token_id, expected_values[-1])
                    assert abs(value - nearest) <= 2 * tolerance, (
                        f"{rule}: token {token_id} has {value:.6g}, expected {nearest:.6g}"
                    )

    @needs(Capability.ROLLING)
    @fills_the_window
    def test_windows_join_their_top_logprobs(self, subject: Subject) -> None:
        """A text of several windows has them for each of its tokens, without a gap."""
        long = make_long_text(subject.codec, subject.window + subject.window // 5, seed=9)
        for text in (TEXTS[0], long):
            request = RollingLoglikelihoodRequest(text)
            asked, plain = subject.roll(replace(request, top_logprobs=_FEWER), request)
            _require_top(subject, asked, _FEWER)
            assert plain.top_logprobs is None, "top_logprobs came and weren't asked for"

    @needs(Capability.ROLLING)
    def test_a_count_of_top_logprobs_below_one_is_refused(self, subject: Subject) -> None:
        """`top_logprobs` is None or an int from 1 on; anything else is an `InvalidRequestError`."""
        (output,) = subject.score(LoglikelihoodRequest(*PAIRS[0], top_logprobs=1))
        _require_top(subject, output, 1)
        for count in _NO_COUNTS:
            pair = LoglikelihoodRequest(*PAIRS[0], top_logprobs=count)
            text = RollingLoglikelihoodRequest(TEXTS[0], top_logprobs=count)
            asked = f"top_logprobs={count!r}"
            assert_refused(partial(subject.score, pair), InvalidRequestError, asked)
            assert_refused(partial(subject.roll, text), InvalidRequestError, asked)


def _find_count(subject: Subject) -> int:
    """Return how many are asked for: fewer of an engine that says that it lists no more."""
    try:
        subject.score(LoglikelihoodRequest(*PAIRS[0], top_logprobs=_COUNT))
    except (InvalidRequestError, UnsupportedRequestError):
        return _FEWER
    return _COUNT


def _require_top(subject: Subject, output: Scored, count: int) -> TopLogprobs:
    """Return the most likely tokens of each scored position, consistent with their scores."""
    tops = output.top_logprobs
    assert tops is not None, "top_logprobs were asked for and are missing"
    assert len(tops) == output.token_count, (
        f"{output.token_count} tokens were scored, and {len(tops)} positions have top_logprobs"
    )
    rounding = allow_rounding(subject)
    for at, top in enumerate(tops):
        values = list(top.values())
        assert len(top) == count, f"position {at} has {len(top)} top_logprobs, not {count}"
        assert values == sorted(values, reverse=True), f"position {at}: not best first: {top}"
        if output.token_ids is None or output.token_logprobs is None:
            continue
        token_id, value = output.token_ids[at], output.token_logprobs[at]
        known = top.get(token_id, min(value, values[-1]))
        assert abs(value - known) <= rounding, (
            f"position {at}: token {token_id} has the score {value:.6g}, top_logprobs are {top}"
        )
    return tops


def _assert_same(
    subject: Subject, found: Sequence[float], expected: Sequence[float], rule: str
) -> None:
    assert_same_logprobs(subject, found, expected, rule, tolerance=allow_rounding(subject))
