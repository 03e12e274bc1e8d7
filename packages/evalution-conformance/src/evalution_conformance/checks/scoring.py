"""Log-likelihoods of continuations: one policy, the same on every engine."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

from evalution_conformance.assertions import (
    assert_failure,
    assert_has_values,
    assert_refused,
    assert_same_fields,
    assert_same_score,
)
from evalution_conformance.probes import (
    CHATS,
    PAIRS,
    PROMPTS,
    SENTENCE,
    put_behind_words,
    require_token_ids,
)
from evalution_conformance.reference_values import (
    SMALL_WINDOW,
    ScoringCase,
    load_reference_values,
    require_cases,
)
from evalution_conformance.subject import (
    LONGEST_PROBE,
    Subject,
    collect_outputs,
    require_output,
    resize,
)
from evalution_conformance.suite import needs
from evalution_core import (
    Capability,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
)
from evalution_core.streams import open_stream

_FOLLOWING = 2
_LARGEST_BATCH, _CAP = 65, 4
_POSITIVE = 1e-6
"""Rounding may lift the log-probability of a sure token this far above 0."""


@needs(Capability.LOGLIKELIHOOD)
class ScoringChecks:
    def test_sums_and_counts_are_consistent(self, subject: Subject) -> None:
        """`logprob` is the sum of `token_logprobs`, finite and not above 0; so is the count."""
        for output in subject.score(*_make_requests()):
            assert math.isfinite(output.logprob), f"logprob is {output.logprob}"
            assert output.logprob <= _POSITIVE * output.token_count, "logprob is above 0"
            assert output.token_count >= 1, f"token_count is {output.token_count}"
            if (values := output.token_logprobs) is None:
                continue
            assert output.token_count == len(values), (
                f"token_count is {output.token_count} and there are {len(values)} token_logprobs"
            )
            assert output.logprob == math.fsum(values), (
                f"logprob is {output.logprob!r}, the sum of token_logprobs {math.fsum(values)!r}"
            )
            assert all(value <= _POSITIVE for value in values), f"above 0: {values}"

    def test_a_batch_scores_as_its_pairs_alone(self, subject: Subject) -> None:
        """Scores come in request order, and don't depend on batch neighbours."""
        assert subject.score() == [], "an empty list must give an empty list"
        probes = [*PAIRS, *reversed(PAIRS)]
        contexts = put_behind_words([context for context, _ in probes], _LARGEST_BATCH)
        requests = [
            LoglikelihoodRequest(context, probes[at % len(probes)][1])
            for at, context in enumerate(contexts)
        ]
        outputs = subject.score(*requests)
        assert len(outputs) == len(requests), f"{len(requests)} pairs, {len(outputs)} scores"
        capped = subject.session.loglikelihood(requests, batch_size=_CAP)
        for index, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            rule = f"pair {index} in a batch and with batch_size={_CAP}"
            assert_same_score(subject, output, capped[index], rule)
            if index < len(probes) or index % 16 == 0:
                (alone,) = subject.score(request)
                assert_same_score(subject, output, alone, f"pair {index} in a batch and alone")

    @needs(Capability.TOKEN_IDS)
    def test_parts_sum_to_the_whole(self, subject: Subject) -> None:
        """Scored in two parts, a text's tokens have the values that they have in one."""
        token_ids = subject.prompt_ids(PROMPTS[0])
        whole = subject.score_ids(token_ids[:1], token_ids[1:])
        cut = len(token_ids) // 2
        head = subject.score_ids(token_ids[:1], token_ids[1:cut])
        tail = subject.score_ids(token_ids[:cut], token_ids[cut:])
        parts = [*(head.token_logprobs or [head.logprob]), *(tail.token_logprobs or [tail.logprob])]
        assert_has_values(subject, whole, parts, "a text scored as a whole and in two parts")

    @needs(Capability.TOKEN_IDS)
    def test_ids_are_taken_as_they_are(self, subject: Subject) -> None:
        """Given ids are scored as they are: nothing is added, nothing encoded again."""
        context_ids = subject.codec.encode(PROMPTS[1])
        continuation_ids = subject.codec.encode(PROMPTS[0])
        output = subject.score_ids(context_ids, continuation_ids)
        assert output.token_count == len(continuation_ids), (
            f"{len(continuation_ids)} ids were given and {output.token_count} scored"
        )
        assert output.token_ids in (None, continuation_ids), f"scored ids: {output.token_ids}"
        assert output.prompt_tokens in (None, len(context_ids)), (
            f"{len(context_ids)} context ids were given, {output.prompt_tokens} were fed"
        )

    @needs(Capability.GENERATE, Capability.TOKEN_IDS)
    def test_generated_tokens_are_greedy(self, subject: Subject) -> None:
        """`is_greedy` is true of what greedy generation gave."""
        prompt_ids, token_ids = _generate(subject)
        output = subject.score_ids(prompt_ids, token_ids)
        if output.is_greedy is None:
            pytest.skip("the engine doesn't know is_greedy")
        assert output.is_greedy, "greedily generated tokens are scored as not greedy"

    @needs(Capability.GENERATE, Capability.TOKEN_IDS)
    def test_a_changed_token_is_not_greedy(self, subject: Subject) -> None:
        """`is_greedy` is false if a token has a larger logit at any position."""
        prompt_ids, token_ids = _generate(subject)
        if subject.score_ids(prompt_ids, token_ids).is_greedy is None:
            pytest.skip("the engine doesn't know is_greedy")
        for at in sorted({0, len(token_ids) // 2, len(token_ids) - 1}):
            before = [*prompt_ids, *token_ids[:at]]
            greedy = subject.score_ids(before, [token_ids[at]])
            # A token with the same logit is as greedy: only a less likely one is certain.
            others = (
                i for i in dict.fromkeys([*prompt_ids, *token_ids, 0, 1]) if i != token_ids[at]
            )
            scores = ((other, subject.score_ids(before, [other])) for other in others)
            other = next(
                (i for i, s in scores if s.logprob < greedy.logprob - subject.tolerance), None
            )
            if other is None:
                pytest.skip("the model finds every token it was asked about equally likely")
            # What follows is greedy again, so that the changed token alone decides.
            after = subject.request("", input_ids=[*before, other], max_new_tokens=_FOLLOWING)
            changed = [*token_ids[:at], other]
            if at < len(token_ids) - 1:
                changed += subject.complete(after).token_ids or []
            assert subject.score_ids(prompt_ids, changed).is_greedy is False, (
                f"token {at} of {len(token_ids)} was changed, and is_greedy is still true"
            )

    @needs(Capability.CHAT, Capability.GENERATE)
    def test_messages_are_a_context(self, subject: Subject) -> None:
        """`messages` stand for the context, rendered with the generation prompt."""
        for chat in CHATS:
            rendered = subject.complete(GenerationRequest(messages=chat, max_new_tokens=1)).prompt
            messages, text = subject.score(
                LoglikelihoodRequest(continuation="6", messages=chat),
                LoglikelihoodRequest(rendered, "6"),
            )
            assert_same_score(subject, messages, text, "messages and their rendering as context")

    def test_bad_pairs_are_refused_by_index(self, subject: Subject) -> None:
        """An empty continuation is an `InvalidRequestError`; `failures` name the bad indices."""
        good = LoglikelihoodRequest(*PAIRS[0])
        requests = [good, LoglikelihoodRequest("A", ""), good, LoglikelihoodRequest("", "")]
        error = assert_refused(
            lambda: subject.score(*requests), InvalidRequestError, "an empty continuation"
        )
        assert set(error.failures) == {1, 3}, (
            f"requests 1 and 3 are empty, failures name {sorted(error.failures)}"
        )

    def test_pairs_come_back_untouched(self, subject: Subject) -> None:
        """`metadata` is the caller's and comes back untouched; so does the request."""
        requests = [
            LoglikelihoodRequest(*pair, metadata={"id": n, "nested": {"list": [1, 2]}})
            for n, pair in enumerate(PAIRS)
        ]
        before = copy.deepcopy(requests)
        for request, output in zip(before, subject.score(*requests), strict=True):
            assert output.metadata == request.metadata, f"metadata came back as {output.metadata}"
        assert requests == before, "loglikelihood() changed the caller's request"

    def test_a_stream_scores_as_the_list_does(self, subject: Subject) -> None:
        """`loglikelihood_continuous` gives each key once, with the scores of `loglikelihood`.

        What was asked for before in a stream that was closed early is in none of them.
        """
        left = ((n, LoglikelihoodRequest(*PAIRS[2])) for n in range(40))
        with open_stream(subject.session.loglikelihood_continuous, left) as closed_early:
            require_output(next(closed_early)[1])
        requests = dict(enumerate(_make_mixed_requests(subject)))
        found = collect_outputs(
            subject.session.loglikelihood_continuous(requests.items(), batch_size=2)
        )
        assert found.keys() == requests.keys(), f"the keys {found.keys()} came back"
        for key, expected in enumerate(subject.score(*requests.values())):
            assert_same_score(subject, found[key], expected, f"pair {key} in a stream")
            assert_same_fields(subject, found[key], expected, f"pair {key} in a stream")

    def test_a_bad_pair_is_a_value(self, subject: Subject) -> None:
        """A bad pair comes as a `RequestFailure` with its key; the stream goes on."""
        good = LoglikelihoodRequest(*PAIRS[0])
        bad = LoglikelihoodRequest("A", "", metadata={"row": 1})
        pairs = [("first", good), ("bad", bad), ("last", good)]
        results: dict[str, Any] = dict(subject.session.loglikelihood_continuous(pairs))
        assert results.keys() == {"first", "bad", "last"}, f"only {results.keys()} came back"
        for key in ("first", "last"):
            require_output(results[key])
        assert_failure(results["bad"], {"row": 1}, "an empty continuation")

    def test_scores_equal_the_reference(self, subject: Subject) -> None:
        """Same text in, same log-probabilities out, up to the runtime's arithmetic."""
        for case in load_reference_values(subject).scoring:
            (output,) = subject.score(LoglikelihoodRequest(case.context, case.continuation))
            _assert_equals_reference(subject, case, output)

    @needs(Capability.TOKEN_IDS)
    def test_scores_of_ids_equal_the_reference(self, subject: Subject) -> None:
        """Same token ids in, same log-probabilities out, up to the runtime's arithmetic."""
        known = load_reference_values(subject).scoring
        cases = (case for case in known if case.context_ids and case.continuation_ids)
        for case in require_cases(cases, "ids"):
            output = subject.score_ids(case.context_ids or (), case.continuation_ids or ())
            _assert_equals_reference(subject, case, output)

    def test_cut_scores_equal_the_reference(self, subject: Subject) -> None:
        """A context that doesn't fit is cut as in lm-eval, and scored as what is left."""
        known = load_reference_values(subject).truncation
        cases = require_cases(
            (case for case in known if case.max_model_len == SMALL_WINDOW), "cut contexts"
        )
        engine = resize(subject.engine, SMALL_WINDOW)
        if engine is None:
            pytest.skip("the engine has no option max_model_len")
        with subject.fresh(engine=engine) as session:
            for case in cases:
                pair = LoglikelihoodRequest(case.context, case.continuation)
                (output,) = session.loglikelihood([pair])
                _assert_equals_reference(subject, case, output)


def _make_requests() -> list[LoglikelihoodRequest]:
    return [LoglikelihoodRequest(*pair) for pair in PAIRS]


def _make_mixed_requests(subject: Subject) -> list[LoglikelihoodRequest]:
    """Make pairs that use each field whose capability is declared."""
    window = subject.session.info.max_model_len or LONGEST_PROBE
    requests = _make_requests()
    if subject.declares(Capability.CHAT):
        requests.append(LoglikelihoodRequest("A", "6", messages=CHATS[0]))
    if subject.declares(Capability.PROMPT_TOP_LOGPROBS):
        requests.append(LoglikelihoodRequest(*PAIRS[0], top_logprobs=2))
    if subject.declares(Capability.TOKEN_IDS) and subject.session.tokenizer is not None:
        ids = subject.prompt_ids(PROMPTS[1])
        given = LoglikelihoodRequest("A", "b", ids[:-1], ids[-1:])
        requests.append(given)
    if window < LONGEST_PROBE:
        requests.append(LoglikelihoodRequest((SENTENCE * (1 + window // 8)).rstrip(), " The"))
    return [replace(request, metadata={"row": row}) for row, request in enumerate(requests)]


def _generate(subject: Subject) -> tuple[list[int], list[int]]:
    for prompt in PROMPTS:
        token_ids = require_token_ids(subject.complete(subject.request(prompt)))
        if len(token_ids) > 1:
            return subject.prompt_ids(prompt), token_ids
    pytest.skip("no probe is answered with two tokens")


def _assert_equals_reference(
    subject: Subject, case: ScoringCase, output: LoglikelihoodOutput
) -> None:
    rule = f"{case.continuation!r} after {case.context[-40:]!r} against the reference"
    allowed = subject.reference_tolerance
    assert_has_values(subject, output, case.token_logprobs, rule, tolerance=allowed)
    assert output.token_ids is None or output.token_ids == (
        case.continuation_ids or output.token_ids
    )
    if None not in (output.is_greedy, case.is_greedy):
        assert output.is_greedy == case.is_greedy, f"{rule}: is_greedy is {output.is_greedy}"
    if case.truncated_tokens is not None and output.truncated_tokens is not None:
        assert output.truncated_tokens == case.truncated_tokens, (
            f"{rule}: {output.truncated_tokens} tokens were cut, expected {case.truncated_tokens}"
        )
