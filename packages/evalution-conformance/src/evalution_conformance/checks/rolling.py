"""Whole texts: each token once, in windows that fit."""

from __future__ import annotations

import copy
import math

import pytest

from evalution_conformance.assertions import assert_refused, assert_same_logprobs, assert_same_score
from evalution_conformance.probes import SENTENCE, TEXTS
from evalution_conformance.reference_values import SMALL_WINDOW, RollingCase, load_reference_values
from evalution_conformance.subject import Subject, collect_outputs, resize
from evalution_conformance.suite import needs
from evalution_core import (
    Capability,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.encoding import rolling_windows


@needs(Capability.ROLLING)
class RollingChecks:
    def test_each_token_is_scored_once(self, subject: Subject) -> None:
        """Each token of the text is scored exactly once, BOS never."""
        for text in (*TEXTS, _long_text(subject)):
            (output,) = subject.roll(RollingLoglikelihoodRequest(text))
            token_ids = subject.codec.encode(text)
            assert output.token_count == len(token_ids), (
                f"the text has {len(token_ids)} tokens, {output.token_count} were scored"
            )
            assert output.token_ids in (None, token_ids), "the scored tokens aren't the text's"
            values = output.token_logprobs
            assert values is None or len(values) == len(token_ids), "token_logprobs are too few"
            assert values is None or output.logprob == math.fsum(values), (
                "logprob isn't the sum of token_logprobs"
            )

    @needs(Capability.LOGLIKELIHOOD)
    def test_one_window_is_plain_scoring(self, subject: Subject) -> None:
        """A text that fits scores as the continuation of an empty context."""
        for text in TEXTS:
            (rolled,) = subject.roll(RollingLoglikelihoodRequest(text))
            (scored,) = subject.score(LoglikelihoodRequest("", text))
            assert_same_score(subject, rolled, scored, "a text in one window")

    @needs(Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_windows_sum_to_the_text(self, subject: Subject) -> None:
        """Longer texts are scored in windows of at most `max_model_len` tokens fed."""
        prefix = subject.conditioning_id
        text = _long_text(subject)
        expected: list[float] = []
        for window in rolling_windows(subject.codec.encode(text), prefix, subject.window):
            context_ids = window.token_ids[: window.start]
            part = subject.score_ids(context_ids, window.token_ids[window.start :])
            expected += part.token_logprobs or [part.logprob]
        (rolled,) = subject.roll(RollingLoglikelihoodRequest(text))
        _assert_same(subject, rolled, expected, "a text in windows and its windows alone")

    def test_bos_is_never_scored(self, subject: Subject) -> None:
        """A text that spells its BOS is conditioned on it, and not scored for it."""
        spelled = subject.codec.decode([subject.bos_id], skip_special_tokens=False)
        if subject.codec.encode(spelled) != [subject.bos_id]:
            pytest.skip("the tokenizer doesn't read BOS from text")
        given, plain = subject.roll(
            RollingLoglikelihoodRequest(spelled + TEXTS[0]), RollingLoglikelihoodRequest(TEXTS[0])
        )
        assert_same_score(subject, given, plain, "a text with and without BOS spelled before it")

    @needs(Capability.TOKEN_IDS)
    def test_rolled_ids_are_their_text(self, subject: Subject) -> None:
        """`input_ids` are scored as the text that they are."""
        text, ids = subject.roll(
            RollingLoglikelihoodRequest(TEXTS[0]),
            RollingLoglikelihoodRequest(input_ids=subject.codec.encode(TEXTS[0])),
        )
        assert_same_score(subject, ids, text, "a text and its ids")

    def test_an_empty_text_is_refused(self, subject: Subject) -> None:
        """An empty rolling text is an `InvalidRequestError` that names it."""
        good = RollingLoglikelihoodRequest(TEXTS[0])
        requests = [good, RollingLoglikelihoodRequest(""), good]
        error = assert_refused(
            lambda: subject.roll(*requests), InvalidRequestError, "an empty text"
        )
        assert set(error.failures) == {1}, (
            f"request 1 is empty, failures name {sorted(error.failures)}"
        )

    def test_texts_score_in_order(self, subject: Subject) -> None:
        """One output for each text, in order, as alone; requests stay as they were."""
        texts = [*TEXTS, _long_text(subject), *reversed(TEXTS)]
        requests = [RollingLoglikelihoodRequest(t, metadata={"t": t[:9]}) for t in texts]
        before = copy.deepcopy(requests)
        outputs = subject.roll(*requests)
        assert len(outputs) == len(requests), f"{len(requests)} texts, {len(outputs)} scores"
        assert requests == before, "loglikelihood_rolling() changed the caller's request"
        for request, output in zip(requests, outputs, strict=True):
            assert output.metadata == request.metadata, f"metadata came as {output.metadata}"
            (alone,) = subject.roll(request)
            assert_same_score(subject, output, alone, "a text among others and alone")
        assert subject.roll() == [], "an empty list must give an empty list"

    def test_a_stream_of_texts_scores_as_the_list_does(self, subject: Subject) -> None:
        """`loglikelihood_rolling_continuous` yields each key once, with the list call's scores."""
        texts = [*TEXTS, _long_text(subject)]
        requests = {n: RollingLoglikelihoodRequest(text) for n, text in enumerate(texts)}
        stream = subject.session.loglikelihood_rolling_continuous(requests.items(), batch_size=2)
        outputs = collect_outputs(stream)
        assert outputs.keys() == requests.keys(), f"the keys {outputs.keys()} came back"
        for key, expected in enumerate(subject.roll(*requests.values())):
            assert_same_score(subject, outputs[key], expected, f"text {key} in a stream")

    def test_rolling_equals_the_reference(self, subject: Subject) -> None:
        """Same text and window in, same log-probabilities out."""
        window = subject.window
        compared = 0
        for case in load_reference_values(subject).rolling:
            fits = len(case.token_ids or ()) <= min(window, case.max_model_len or window)
            if fits or case.max_model_len == window:
                (output,) = subject.roll(RollingLoglikelihoodRequest(case.text))
                _assert_equals_reference(subject, case, output)
                compared += 1
        assert compared, f"no reference text fits max_model_len={window}"

    def test_windows_equal_the_reference(self, subject: Subject) -> None:
        """Windows as lm-eval's: a text longer than `max_model_len` scores as it does there."""
        cases = [
            c for c in load_reference_values(subject).rolling if c.max_model_len == SMALL_WINDOW
        ]
        engine = resize(subject.engine, SMALL_WINDOW)
        if engine is None:
            pytest.skip("the engine has no option max_model_len")
        with subject.fresh(engine=engine) as session:
            for case in cases:
                (output,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(case.text)])
                _assert_equals_reference(subject, case, output)


def _long_text(subject: Subject) -> str:
    """A text of at least two windows and a bit."""
    tokens = len(subject.codec.encode(SENTENCE * 2)) // 2
    return (SENTENCE * (1 + math.ceil(2.2 * subject.window / tokens))).rstrip()


def _assert_equals_reference(
    subject: Subject, case: RollingCase, output: RollingLoglikelihoodOutput
) -> None:
    rule = f"the text {case.text[:40]!r} in windows of {case.max_model_len} against the reference"
    _assert_same(subject, output, case.token_logprobs, rule, subject.reference_tolerance)


def _assert_same(
    subject: Subject,
    found: RollingLoglikelihoodOutput,
    expected: list[float],
    rule: str,
    tolerance: float | None = None,
) -> None:
    values = found.token_logprobs
    if values is None or len(expected) == 1:
        values, expected = [found.logprob], [math.fsum(expected)]
    assert_same_logprobs(subject, values, expected, rule, tolerance=tolerance)
